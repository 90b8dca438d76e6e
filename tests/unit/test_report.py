"""Run folders as a run writes them, made up from arithmetic, and what is read and shown of them."""

import io
import json
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from isoproto.config import RunConfig, read_overrides
from isoproto.errors import StateError
from isoproto.report import (
    added_line,
    list_runs,
    read_run,
    read_summary,
    runs_table,
    summary_table,
    write_report,
)
from isoproto.report.charts import PALETTE, exchanged_against_alone
from isoproto.runs.evaluation import evaluation_figures
from isoproto.runs.metrics import accuracy_history, accuracy_summary, summarise

MODELS = ("cnn", "mlp", "mobilenet", "resnet10")
DOMAINS = ("mnist", "optdigits", "pen", "rendered")
CLASSES = tuple("0123456789")


def fabricate(
    folder: Path,
    *,
    clients=20,
    rounds=10,
    asked=None,
    models=MODELS,
    domains=DOMAINS,
    classes=CLASSES,
    losses=True,
    exchange=True,
    hyper=None,
    failures=(),
    status="completed",
    names=None,
    late=(),
    one_model=False,
    added=False,
    seed=3,
):
    """Write the folder of a run whose clients learn along saturating curves.

    ``asked`` clients train a round (all by default); ``status`` "running" leaves out what a run writes at its end;
    ``hyper`` makes the field of that name from the round; with ``added``, clients have several predictors.
    """
    rng = np.random.default_rng(seed)
    names = names or [str(i) for i in range(clients)]
    share = rng.dirichlet(np.full(len(classes), 0.4), size=clients)
    train = np.stack([rng.multinomial(rng.integers(120, 360), p) for p in share])
    test = np.maximum(train // 3, (train > 0).astype(int))
    total = test.sum(axis=1)
    model = [models[i % len(models)] for i in range(clients)]
    ceiling = np.clip(0.93 - 0.07 * (np.arange(clients) % len(models)) + rng.normal(0, 0.05, clients), 0.3, 0.99)
    pace = rng.uniform(2, 5, clients)

    def correct(seen):
        return np.round(total * (0.1 + (ceiling - 0.1) * (1 - np.exp(-seen / pace)))).astype(int)

    folder.mkdir(parents=True)
    config = {
        "strategy": "isoproto",
        "data": "digits4",
        "partition": "dirichlet",
        "alpha": 0.4,
        "models": ",".join(models),
        "rounds": rounds,
        "fraction": 1.0 if asked is None else asked / clients,
        "seed": 0,
        "batch-size": 32,
        "learning-rate": 0.02,
        "frame": "procrustes",
        "hyper.per-class": 5,
        "hyper.steps": 30,
        "stream": True,
    }
    (folder / "config.toml").write_text(
        "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in config.items())
    )
    partition = [
        {
            "client": names[i],
            "model": model[i],
            "train": train[i].tolist(),
            "test": test[i].tolist(),
            "domain": domains[i * len(domains) // clients] if domains else "",
        }
        for i in range(clients)
    ]
    (folder / "partition.json").write_text(json.dumps({"classes": list(classes), "clients": partition}))

    def evaluation(round_, counts):
        entries = [
            {
                "client": names[i],
                "model": model[i],
                "correct": int(counts[i]),
                "total": int(total[i]),
                "correct_prototype": int(0.94 * counts[i]) if round_ and exchange else None,
                "class_correct": np.floor(test[i] * counts[i] / total[i]).astype(int).tolist(),
                "class_total": test[i].tolist(),
                "class_predicted": np.roll(test[i], 1).tolist(),
                "domain": partition[i]["domain"],
                "late": names[i] in late,
            }
            for i in range(clients)
        ]
        if added:
            entries = [compared(i, entry, int(train[i].sum())) for i, entry in enumerate(entries)]
        figures = evaluation_figures(entries, one_model=one_model)
        return {"kind": "evaluation", "round": round_, "clients": entries, "one_model": one_model, **figures}

    seen = np.zeros(clients)
    lines = [evaluation(0, correct(seen))]
    last = correct(seen)
    for r in range(1, rounds + 1):
        chosen = np.sort(np.random.default_rng([seed, r]).permutation(clients)[: asked or clients])
        failed = {names.index(client): reason for client, round_, reason in failures if round_ == r}
        before, fresh = correct(seen), [i for i in chosen if i not in failed]
        seen[fresh] += 1
        after = correct(seen)
        last[fresh] = after[fresh]
        terms = {"cross_entropy": 1.9 * np.exp(-r / 4) + 0.1, "prototype": 0.3 * np.exp(-r / 6), "instance": 0.4 / r}
        terms["total"] = terms["cross_entropy"] + 0.3 * terms["prototype"] + terms["instance"]
        rows = 512 * (train > 0).sum(axis=1) * int(exchange)
        lines += [
            {
                "kind": "client",
                "round": r,
                "client": names[i],
                "model": model[i],
                "accuracy": {"before": before[i] / total[i], "after": after[i] / total[i]},
                "correct": int(after[i]),
                "total": int(total[i]),
                "loss": terms if losses else {},
                "scatter": 0.8,
                "samples": int(train[i].sum()),
                "seconds": 0.2 + 0.05 * (i % 4),
                "bytes": {"up": int(rows[i]) + 420, "down": 5120 * int(exchange) + 380, "up_rows": int(rows[i])},
            }
            for i in fresh
        ]
        lines += [{"kind": "failure", "round": r, "client": names[i], "reason": why} for i, why in failed.items()]
        lines.append(
            {
                "kind": "round",
                "round": r,
                "clients": len(chosen),
                "failed": len(failed),
                "accuracy": {**accuracy_summary(last, total), "fresh": len(fresh)},
                "loss": terms if losses else {},
                "classes": len(classes),
                **({"hyper": hyper(r)} if hyper else {}),
                "bytes": {
                    "up": int(rows[fresh].sum()) + 420 * len(fresh),
                    "down": (5120 * int(exchange) + 380) * len(fresh),
                    "up_rows": int(rows[fresh].sum()),
                },
                "seconds": {"round": 3.1 + 0.4 * (r % 3), "train": 2.7 + 0.35 * (r % 3), "server": 0.12},
            }
        )
    if status != "running":
        lines.append(evaluation(rounds, correct(seen)))
        (folder / "summary.json").write_text(
            json.dumps(
                {
                    "strategy": "isoproto",
                    "settings": config,
                    "seed": 0,
                    "rounds": rounds,
                    "status": status,
                    "reason": "round 9: 3 of 20 clients answered, min-clients is 10" if status == "failed" else "",
                    **summarise(lines),
                    "versions": {"isoproto": "0.1.0", "flwr": "1.42.0", "torch": "2.9.0", "python": "3.11.9"},
                    "git_commit": "32c0750",
                    "fingerprint": "9f1c2ab0d8e4",
                    "experiment": "a1b2c3d4",
                    "finished": "2026-04-01T22:31:07+0000",
                    "report": str(folder / "report.html"),
                }
            )
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def compared(index, entry, samples):
    """Give a client other predictors. Alone, every third client loses a fifth of what it gets right, others nothing."""
    correct, total = entry["correct"], entry["total"]
    fewer = correct // 5 if index % 3 == 0 else 0
    lost = min(index % 2, correct - fewer, total - correct)
    predictors = {"head": correct // 2, "joint": correct, "alone": correct - fewer}
    return {**entry, "samples": samples, "predictors": predictors, "gained": fewer + lost, "lost": lost}


def learned(round_, *, classes=10, steps=30, absent=()):
    """The figures of hyper-prototypes; the first round matches nothing, as in a real run."""
    points = np.random.default_rng(classes).normal(size=(classes, 6))
    points[list(absent)] = np.nan

    def cosines(rows):
        rows = rows - np.nanmean(rows, axis=0)
        units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return np.nan_to_num(units @ units.T).tolist()

    figures = {
        "movement": 0.05 * (round_ - 1),
        "anchor_cosine": {"min": -0.6432, "mean": -0.1059},
        "similarity": {"hyper": cosines(points * np.arange(1, 7)), "clients": cosines(points)},
    }
    if round_ == 1:
        return figures
    matching = (0.2 / round_ * np.exp(-np.arange(steps + 1) / 20)).tolist()
    return {**figures, "matching": matching, "matched_classes": classes - len(absent), "agreement": 0.9167}


def bare(folder, hyper, *, rounds=2, classes=CLASSES):
    """Write the folder of a run that tells nothing but its classes and ``hyper``, for the drawings of those alone."""
    folder.mkdir()
    (folder / "config.toml").write_text('strategy = "isoproto"\n')
    (folder / "partition.json").write_text(json.dumps({"classes": classes, "clients": []}))
    lines = [{"kind": "round", "round": r, "hyper": hyper(r)} for r in range(1, rounds + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def plots(folder):
    return {path.stem for path in (folder / "plots").glob("*.svg")}


def alts(page):
    return {value for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")}


def learned_section(page):
    """The visible text between that heading and the next, without line ends; None without the section."""
    section = re.search("What the server learned (.*?) Training, traffic and failures", " ".join(page.text.split()))
    return section and section[1]


HOSTILE = {
    "clients": 3,
    "rounds": 2,
    "names": ["<script>alert(1)</script>", "$\\frac{x}$ \x1b[2J", "病房 \u202eevil \ud800"],
    "models": ["<b>cnn</b>", "$^$", "模型"],
    "domains": ("<i>a</i>", "$_$", "#ffffff"),
    "failures": [("<script>alert(1)</script>", 1, '"><img src=x onerror=alert(1)>\x00 [bold]')],
}
VARIANTS = {
    "one client, one round, nothing exchanged": {
        "clients": 1, "rounds": 1, "losses": False, "exchange": False, "domains": (),
    },
    "200 clients, 20 per cent a round": {"clients": 200, "asked": 40, "rounds": 30},
    "several predictors": {"clients": 3, "rounds": 1, "added": True},
    "100 classes, 10 architectures, failed": {
        "classes": tuple(f"class {i}" for i in range(100)), "models": [f"resnet{i}" for i in range(10)],
        "rounds": 3, "domains": (), "status": "failed",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """The usual run: 20 clients, 4 architectures, 10 rounds, two failed replies. Tests that change it copy it."""
    failures = [("7", 3, "array 'proto' holds NaN"), ("12", 5, "no answer within 60 s")]
    return fabricate(tmp_path_factory.mktemp("runs") / "20260401-221530-isoproto-4711", failures=failures)


@pytest.fixture(scope="module")
def report(run_folder):
    return write_report(run_folder).read_text(encoding="utf-8")


class Page(HTMLParser):
    """What a browser makes of a page: elements, attributes, ids, visible text; open elements must close."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.stack = [], [], "", []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack[-1:] != ["style"]:
            self.text += data + " "


def shown(table, width=110):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def copy(folder, target):
    target.mkdir()
    for name in ("config.toml", "partition.json", "metrics.jsonl", "summary.json"):
        (target / name).write_bytes((folder / name).read_bytes())
    return target


def test_reading_gives_back_what_the_run_wrote(run_folder):
    run = read_run(run_folder)
    assert run.name == "20260401-221530-isoproto-4711"
    assert run.config["hyper.per-class"] == 5
    assert run.classes == CLASSES
    assert [share.client for share in run.clients] == [str(i) for i in range(20)]
    assert {share.domain for share in run.clients} == set(DOMAINS)
    assert run.summary["status"] == "completed"
    assert [line["kind"] for line in run.metrics].count("client") == 198


def test_the_rounds_own_figures_are_those_worked_out_from_the_clients(tmp_path):
    run = read_run(fabricate(tmp_path / "run", asked=5, failures=[("3", 2, "lost")]))
    history = accuracy_history(run.metrics)
    means = [line["accuracy"]["mean"] for line in run.metrics if line["kind"] == "round"]
    assert [row["mean"] for row in history.summaries()][1:] == means


def test_a_run_in_progress_has_the_figures_so_far(tmp_path):
    run = read_run(fabricate(tmp_path / "run", rounds=4, status="running"))
    assert run.summary["status"] == "running"
    assert run.summary["rounds"] == 4
    assert run.summary["accuracy"] == summarise(run.metrics)["accuracy"]
    assert run.summary["accuracy"]["mean"] > 0.3


@pytest.mark.parametrize("cut", [1, 40, 100])
def test_a_last_line_that_was_cut_off_is_left_out(run_folder, tmp_path, cut):
    folder = copy(run_folder, tmp_path / "run")
    path = folder / "metrics.jsonl"
    whole = len(read_run(folder).metrics)
    path.write_bytes(path.read_bytes()[: -1 - cut])
    assert len(read_run(folder).metrics) == whole - 1


def test_a_last_line_that_lacks_only_its_end_is_kept(run_folder, tmp_path):
    folder = copy(run_folder, tmp_path / "run")
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    assert read_run(folder).metrics == read_run(run_folder).metrics


@pytest.mark.parametrize("text", ['{"kind": "round", "ro', "[1, 2]", '{"kind": "round"}'])
def test_a_damaged_line_inside_the_file_is_named(run_folder, tmp_path, text):
    folder = copy(run_folder, tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([lines[0], text, *lines[1:]]) + "\n")
    with pytest.raises(StateError, match=r"metrics\.jsonl line 2 (is not JSON|must be an object)"):
        read_run(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.toml", "rounds = = 3", r"config\.toml is not TOML"),
        ("summary.json", '{"strategy"', r"summary\.json is not JSON"),
        ("summary.json", "[]", r"summary\.json must hold an object, got list"),
        ("partition.json", '{"classes": []}', r"partition\.json lacks a field .*'clients'"),
        (
            "partition.json",
            '{"classes": ["a"], "clients": [{"client": "4", "model": "cnn", "train": [1, 2], "test": [1]}]}',
            r"client '4' must have 1 counts, got 2 for train and 1 for test",
        ),
    ],
)
def test_a_damaged_file_is_named(run_folder, tmp_path, name, content, message):
    folder = copy(run_folder, tmp_path / "run")
    (folder / name).write_text(content)
    with pytest.raises(StateError, match=message):
        read_run(folder)


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir])
def test_a_folder_that_is_no_run_is_refused(tmp_path, make):
    make(tmp_path / "elsewhere")
    with pytest.raises(StateError, match=r"elsewhere is no run folder: it has no config\.toml"):
        read_run(tmp_path / "elsewhere")


def test_fields_a_summary_lacks_are_nothing_known(run_folder, tmp_path):
    folder = copy(run_folder, tmp_path / "run")
    (folder / "summary.json").write_text('{"status": "failed", "accuracy": {"mean": 0.5}}')
    summary = read_summary(folder).summary
    assert summary["accuracy"]["mean"] == 0.5
    assert summary["accuracy"]["best"] is None
    assert "50.0%" in shown(summary_table(read_summary(folder)))


def test_runs_are_listed_newest_first_and_broken_ones_left_out(run_folder, tmp_path, caplog):
    for name in ("20260102-local-1", "20260301-local-3", "20260203-local-2", "20260104-local-broken"):
        copy(run_folder, tmp_path / name)
    (tmp_path / "20260104-local-broken" / "summary.json").write_text("{")
    (tmp_path / "not a run").mkdir()
    assert [run.name for run in list_runs(tmp_path)] == ["20260301-local-3", "20260203-local-2", "20260102-local-1"]
    assert "20260104-local-broken" in caplog.text
    assert list_runs(tmp_path / "nowhere") == []


def test_the_terminal_summary_shows_every_figure(run_folder):
    text = shown(summary_table(read_run(run_folder)))
    for figure in ("76.2%", "75.5%", "64.2%", "92.5%", "8.1 points", "72.2%", "70.8%", "10.2%"):
        assert figure in text
    assert "20 of 20 clients" in text
    assert "round 10; chosen on test data" in text
    assert re.search(r"sent +│ +4\.49 kB │ per client and round, serialised; rows alone 4\.07 kB", text)
    assert re.search(r"received +│ +5\.50 kB", text)
    assert re.search(r"time per round +│ +3\.5 s │ median; 35\.0 s in all", text)
    assert "client 7, round 3: array 'proto' holds NaN" in text


def test_the_terminal_summary_counts_failures_it_does_not_show(tmp_path):
    failures = [(str(i), 1, f"reason {i}") for i in range(8)]
    text = shown(summary_table(read_run(fabricate(tmp_path / "run", rounds=1, failures=failures))))
    assert "reason 4" in text
    assert "reason 5" not in text
    assert "and 3 more, in summary.json" in text


def test_text_from_clients_reaches_the_terminal_as_text(tmp_path):
    text = shown(summary_table(read_run(fabricate(tmp_path / "[red]run", **HOSTILE))))
    assert "\x1b[2J" not in text
    assert "\x00" not in text
    assert "[bold]" in text
    assert "[red]run" in text


def test_the_list_of_runs_breaks_no_name(run_folder, tmp_path):
    copy(run_folder, tmp_path / "20260401-221530-isoproto-4711")
    fabricate(tmp_path / "20260402-221530-isoproto-4712", rounds=1, status="failed")
    lines = shown(runs_table(list_runs(tmp_path)), width=100).splitlines()
    assert max(map(len, lines)) <= 100
    newest = next(i for i, line in enumerate(lines) if "20260402" in line)
    assert re.search(r"failed +1 ", lines[newest])
    assert re.search(r"completed +10 +76\.2% +64\.2% +76\.2% \(10\) +4\.49 kB", "\n".join(lines[newest:]))


def test_the_report_shows_what_was_evaluated_on_whose_data_and_when(report):
    text = " ".join(Page(report).text.split())
    assert (
        "76.2% Mean over all 20 clients after round 10: each client's own model, by its own head, on that client's "
        "own test data. Before any training: 10.2%." in text
    )
    for figure in ("75.5%", "64.2%", "92.5%", "8.1 points", "72.2%", "70.8%", "4.49 kB", "5.50 kB", "3.5 s"):
        assert figure in text
    assert "Chosen on test data, so optimistic." in text
    assert "clients 20 architectures cnn, mlp, mobilenet, resnet10 data digits4 partition dirichlet alpha 0.4" in text
    assert "12 no answer within 60 s" in text
    assert "hyper.per-class 5" in text
    assert "flwr 1.42.0" in text


def test_the_papers_figures_are_in_the_report(tmp_path):
    folder = fabricate(tmp_path / "run", late=("3", "8"), one_model=True)
    run, text = read_run(folder), " ".join(Page(write_report(folder).read_text(encoding="utf-8")).text.split())
    evaluations = [line for line in run.metrics if line["kind"] == "evaluation"]
    last = evaluations[-1]
    keys = ("macro_f1", "balanced_accuracy", "domain_mean", "global_accuracy", "late_mean")
    shown = " ".join(f"{100 * last[key]:.1f}%" for key in keys)
    heads = "macro-F1 mean of classes mean of domains averaged model, all test data clients that join late"
    assert f"round mean sample-weighted {heads} {last['round']} " in text
    assert f" {shown} {evaluations[-2]['round']} " in text
    assert " By class, all clients together class accuracy F1 0 " in text
    goals = [run.summary["rounds_to"], run.summary["domains"]["rounds_to"], run.summary["global"]["rounds_to"]]
    first = " ".join(str(reached["0.2"]) for reached in goals)
    columns = "accuracy mean mean of domains averaged model, all test data"
    assert f"First round with at least {columns} 20.0% {first} 30.0% " in text
    assert "95.0%" not in text
    assert "2 clients kept from training before round 1 " in text


def test_figures_that_a_run_does_not_have_are_left_out_of_the_report(report):
    text = " ".join(Page(report).text.split())
    assert "the newest first round mean sample-weighted macro-F1 mean of classes mean of domains 10 " in text
    assert "averaged model" not in text
    assert "kept from training" not in text


@pytest.mark.parametrize(("classes", "told"), [(10, True), (101, False)])
def test_the_partition_tells_its_numbers_as_long_as_there_are_few(tmp_path, classes, told):
    folder = fabricate(tmp_path / "run", rounds=1, classes=tuple(f"class {i}" for i in range(classes)))
    write_report(folder)
    svg = (folder / "plots" / "partition.svg").read_text(encoding="utf-8")
    counts = read_run(folder).clients[4].train
    assert (f"<title>client 4, class class 3: {counts[3]}</title>" in svg) == told
    assert svg.count("<title>client ") == (20 * classes if told else 0)


@pytest.mark.parametrize(("clients", "told"), [(500, "One dot is one client"), (501, "A curve joins the clients")])
def test_drawings_of_many_clients_stay_small(tmp_path, clients, told):
    folder = fabricate(tmp_path / "run", rounds=1, clients=clients)
    page = write_report(folder).read_text(encoding="utf-8")
    assert told in page
    marks = sum((folder / "plots" / f"{name}.svg").read_text().count("<path") for name in ("clients", "partition"))
    assert (marks > clients) == (clients <= 500)
    assert ElementTree.parse(folder / "plots" / "clients.svg")


def test_clients_that_were_not_asked_are_owned_up_to(tmp_path):
    text = Page(write_report(fabricate(tmp_path / "run", rounds=2, asked=5, status="running")).read_text()).text
    assert "count with their last value" in text
    assert "In progress: 2 of 2 rounds are done." in text


def test_an_old_run_has_no_section_on_what_the_server_learned(report):
    assert learned_section(Page(report)) is None


def test_the_report_says_how_to_repeat_the_run(report, run_folder):
    """Also on another machine, to which the report was mailed: nothing of this one is in the command."""
    text = Page(report).text
    (command,) = (line for line in text.splitlines() if line.startswith("isoproto run"))
    assert "git checkout 32c0750" in text
    assert str(run_folder) not in command
    words = shlex.split(command)
    assert words[-2:] == ["--clients", "20"]
    repeated, first = RunConfig.from_mapping(read_overrides([words[3]])).to_mapping(), read_run(run_folder).config
    folders = {"output-dir", "state-dir", "data-dir", "resume", "clients"}
    assert {key: repeated[key] for key in repeated.keys() & first.keys() - folders} == {
        key: first[key] for key in repeated.keys() & first.keys() - folders
    }


def test_the_report_asks_the_network_for_nothing_and_runs_no_script(report):
    page = Page(report)
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(page.tags)
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'; img-src data:") in page.attributes
    for tag, name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "xlink:href", "action", "srcset", "poster"):
            assert value.startswith(("#", "data:image/png;base64,")), (tag, name, value[:60])
    assert "@import" not in report
    assert set(re.findall(r"url\((.)", report)) == {"#"}


def test_every_id_of_the_report_is_its_own_and_every_reference_finds_one(report):
    page = Page(report)
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    wanted = {value[1:] for _, name, value in page.attributes if name == "xlink:href" and value.startswith("#")}
    assert wanted | set(re.findall(r"url\(#([^)]+)\)", report)) <= set(ids)


def test_every_drawing_has_words_for_who_does_not_see_it(report):
    page = Page(report)
    alts = [value for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")]
    assert page.tags.count("svg") == page.tags.count("figure") == len(alts) == 6
    assert "Mean accuracy over all clients against the round: 10.2% at round 0, 76.2% at round 10." in alts
    assert min(map(len, alts)) > 60


def test_drawings_in_the_report_follow_the_colour_scheme(report, run_folder):
    drawn = "".join(re.findall(r"<svg.*?</svg>", report, flags=re.DOTALL))
    files = "".join(path.read_text() for path in (run_folder / "plots").glob("*.svg"))
    used = {name for name, (light, _) in PALETTE.items() if light in files}
    assert {"ink", "muted", "grid", "panel", "series-0", "series-3"} <= used
    for name, (light, dark) in PALETTE.items():
        assert light not in drawn
        assert (f"var(--{name})" in drawn) == (name in used)
        assert f"--{name}: {light};" in report
        assert f"--{name}: {dark};" in report


@pytest.mark.parametrize("count", [4, 9])
def test_a_legend_stays_inside_its_drawing(tmp_path, count):
    """In DejaVu Sans, which is as wide as the fonts of browsers get, a character takes 0.6 of 12 pixels."""
    models = [f"architecture{'x' * (3 * i)}" for i in range(count)]
    folder = fabricate(tmp_path / "run", clients=10, rounds=1, models=models)
    write_report(folder)
    texts = ElementTree.parse(folder / "plots" / "accuracy.svg").iter("{http://www.w3.org/2000/svg}text")
    ends = [float(text.get("x")) + 0.6 * 12 * len(text.text) for text in texts if text.text[0].isalpha()]
    assert len(ends) >= count + 2
    assert max(ends) <= 500 + 20


def test_the_report_depends_on_the_folder_alone(run_folder, report):
    before = {path.name: path.read_bytes() for path in (run_folder / "plots").iterdir()}
    assert sorted(before) == [f"{n}.svg" for n in ("accuracy", "bytes", "clients", "losses", "partition", "seconds")]
    assert write_report(run_folder).read_text(encoding="utf-8") == report
    assert {path.name: path.read_bytes() for path in (run_folder / "plots").iterdir()} == before


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_run_has_a_report(tmp_path, variant):
    folder = fabricate(tmp_path / "run", **VARIANTS[variant])
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert page.tags.count("svg") == len(list((folder / "plots").iterdir())) >= 5
    for path in (folder / "plots").iterdir():
        ElementTree.parse(path)  # a complete and well-formed file of its own


def test_the_report_shows_what_the_server_learned(tmp_path):
    folder = fabricate(tmp_path / "run", rounds=4, hyper=learned)
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert {"matching", "similarity"} <= plots(folder)
    assert (
        "After round 4: hyper-prototypes have moved by 15.0% of their length at the start; the anchors of two classes "
        "have a mean cosine of −0.11 (least −0.64); two clients' gradients of a class agree with a mean cosine of 0.92."
    ) in learned_section(page)
    falls = "from 0.1 to 0.0223 in round 2, from 0.05 to 0.0112 in round 4"
    assert f"Gradient-matching loss per class within each round: {falls}." in alts(page)


def test_the_words_for_the_heat_maps_name_the_classes_most_and_least_alike(tmp_path):
    rows = [[1, 0.25, -0.5], [0.25, 1, 0.1], [-0.5, 0.1, 1]]
    figures = {"similarity": {"hyper": rows, "clients": (2 * np.eye(3) - rows).tolist()}}
    folder = bare(tmp_path / "run", lambda _: figures, classes=("cat", "dog", "<car>"))
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert (
        "Heat maps of the cosines between 3 classes after round 2. "
        "hyper-prototypes: most alike are cat and dog (0.25), least cat and <car> (−0.50). "
        "the clients' own: most alike are cat and <car> (0.50), least cat and dog (−0.25)."
    ) in alts(page)


@pytest.mark.parametrize("classes", [2, 10, 30])
def test_every_cell_of_the_heat_maps_says_its_number(tmp_path, classes):
    names = tuple(f"class & {i}" for i in range(classes))
    folder = bare(tmp_path / "run", lambda r: learned(r, classes=classes), rounds=1, classes=names)
    report = write_report(folder).read_text(encoding="utf-8")
    svg = "{http://www.w3.org/2000/svg}"
    drawing = ElementTree.parse(folder / "plots" / "similarity.svg")
    cells = [cell for cell in drawing.iter(f"{svg}rect") if cell.find(f"{svg}title") is not None]
    words = [cell.findtext(f"{svg}title") for cell in cells]
    assert len(words) == 2 * classes**2
    assert words[1].startswith("class & 0 and class & 1: ")
    maps = learned(1, classes=classes)["similarity"]
    told = [float(text.rsplit(" ", 1)[1].replace("−", "-")) for text in words]
    assert told == pytest.approx(np.ravel([maps["hyper"], maps["clients"]]), abs=0.0051)
    assert report.count("<title>") == len(cells) + 1  # the drawings' own titles are left out of the page

    def box(rectangle):
        return np.array([float(rectangle.get(key)) for key in ("x", "y", "width", "height")])

    areas = drawing.findall(f".//{svg}clipPath/{svg}rect")  # of the two maps and of their scale
    for area, first, last in zip(areas, cells[:: classes**2], cells[classes**2 - 1 :: classes**2], strict=False):
        assert box(first)[:2] == pytest.approx(box(area)[:2], abs=0.1)
        assert box(last)[:2] + box(last)[2:] == pytest.approx(box(area)[:2] + box(area)[2:], abs=2)


@pytest.mark.parametrize("hyper", [None, {}])
def test_a_run_without_hyper_prototypes_says_nothing_of_them(tmp_path, hyper):
    folder = bare(tmp_path / "run", lambda _: hyper)
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert learned_section(page) is None
    assert plots(folder) == set()


@pytest.mark.parametrize(
    ("figures", "drawn", "sentence"),
    [
        ({"matching": [0.5, 0.25]}, {"matching"}, None),
        ({"matching": [0.5, None, float("nan")]}, {"matching"}, None),
        ({"movement": 0.0}, set(), "After round 2: hyper-prototypes have moved by 0.0% of their length at the start."),
        (
            {"anchor_cosine": {"min": None, "mean": 0.5}, "agreement": None, "matching": []},
            set(),
            "After round 2: the anchors of two classes have a mean cosine of 0.50.",
        ),
        (
            {"agreement": -0.5, "anchor_cosine": None, "movement": None, "similarity": None, "matching": None},
            set(),
            "After round 2: two clients' gradients of a class agree with a mean cosine of −0.50.",
        ),
        ({"similarity": {"clients": [[1, 0.5], [0.5, 1]]}}, {"similarity"}, None),
        ({"similarity": {"hyper": [[1, -1], [-1, 1]], "clients": None}}, {"similarity"}, None),
        ({"matched_classes": 0, "agreement": None, "matching": [None, None]}, set(), None),
    ],
)
def test_what_is_known_of_hyper_prototypes_is_shown_and_no_more(tmp_path, figures, drawn, sentence):
    folder = bare(tmp_path / "run", lambda _: figures, classes=("a", "b"))
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert plots(folder) == drawn
    assert (learned_section(page) is not None) == bool(drawn or sentence)
    assert re.findall(r"After round \d+:[^.]*(?:\.\d[^.]*)*\.", page.text) == ([sentence] if sentence else [])


def test_the_heat_maps_are_those_of_the_last_round_that_has_some(tmp_path):
    folder = bare(
        tmp_path / "run", lambda r: {**learned(r), "similarity": r <= 2 and learned(r)["similarity"]}, rounds=4
    )
    text = Page(write_report(folder).read_text(encoding="utf-8")).text
    assert "as seen from their mean, after round 2:" in text
    assert "After round 4: hyper-prototypes" in text


def test_one_class_has_nothing_to_be_alike(tmp_path):
    figures = {**learned(2, classes=2), "similarity": {"hyper": [[0.0]], "clients": [[0.0]]}, "anchor_cosine": None}
    folder = bare(tmp_path / "run", lambda _: figures, classes=("all",))
    section = learned_section(Page(write_report(folder).read_text(encoding="utf-8")))
    assert "Gradient matching" in section
    assert "anchors" not in section
    assert "Which classes are alike" not in section


def test_absent_classes_are_not_known_in_the_heat_maps(tmp_path):
    folder = bare(tmp_path / "run", lambda r: learned(r, absent=(3,)))
    report = write_report(folder).read_text(encoding="utf-8")
    assert report.count("<title>3 and 3: –</title>") == report.count("<title>3 and 4: –</title>") == 2
    assert report.count(": –</title>") == 2 * 19
    assert report.count("<title>4 and 4: 1.00</title>") == 2


@pytest.mark.parametrize(("rounds", "curves"), [(60, 59), (62, 0)])
def test_every_step_of_matching_is_drawn_unless_the_rounds_are_many(tmp_path, rounds, curves):
    folder = bare(tmp_path / "run", learned, rounds=rounds)
    write_report(folder)
    drawing = (folder / "plots" / "matching.svg").read_text()
    lines = re.findall(r'<path d="([^"]*)" clip-path="[^"]*" style="[^"]*stroke: #2f66c8', drawing)
    assert sum("L" in line for line in lines) == (curves or 2)


def test_the_losses_of_hyper_prototypes_are_drawn_with_the_others(tmp_path):
    folder = fabricate(tmp_path / "run", clients=4, rounds=2)
    metrics = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(metrics.replace('"instance":', '"hpcl": 0.75, "hpal": 0.125, "instance":'))
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert any("hpcl 0.75, hpal 0.125" in alt for alt in alts(page))


def test_a_loss_term_of_a_new_method_is_drawn_under_its_name(tmp_path):
    folder = fabricate(tmp_path / "run", clients=4, rounds=2)
    metrics = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(metrics.replace('"instance":', '"hpcl": 0.75, "new_term": 0.5, "instance":'))
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert any("hpcl 0.75, new term 0.5" in alt for alt in alts(page))


def test_a_run_that_has_not_begun_has_a_report(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text('strategy = "fedsaf"\nrounds = 3\n')
    text = Page(write_report(folder).read_text()).text
    assert "In progress: 0 of 3 rounds are done." in text
    assert "No client has been evaluated yet." in text


def test_text_from_clients_stays_text_in_the_report(tmp_path):
    folder = fabricate(tmp_path / "run", **HOSTILE)
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert not {"script", "img", "i", "b"} & set(page.tags)
    assert "<script>alert(1)</script>" in page.text
    assert '"><img src=x onerror=alert(1)>\ufffd [bold]' in page.text
    assert "#ffffff" in page.text  # not taken for a colour of the drawing
    for path in (folder / "plots").iterdir():
        ElementTree.parse(path)


# What federation added


def added_text(page):
    """The visible text of the section, without line ends; None without it."""
    section = re.search("What federation added (.*?) Data ", " ".join(page.text.split()))
    return section and section[1]


@pytest.fixture(scope="module")
def added_folder(tmp_path_factory):
    return fabricate(tmp_path_factory.mktemp("runs") / "run", rounds=2, added=True)


def test_the_report_says_what_federation_added(added_folder):
    page = Page(write_report(added_folder).read_text(encoding="utf-8"))
    text, figures = added_text(page), read_run(added_folder).summary
    clients, samples = figures["added"]["clients"], figures["added"]["samples"]
    assert (clients["gain"], clients["lose"], clients["tie"]) == (7, 0, 13)
    mean, low, high = (f"{100 * clients[key]:.1f}" for key in ("difference", "low", "high"))
    assert f"For the average client it is +{mean} points [{low}, {high}]. In brackets is the 95% interval" in text
    assert "what to expect of the average of other clients like these." in text
    assert f"with nothing exchanged {100 * clients['alone']:.1f}% {100 * samples['alone']:.1f}%" in text
    assert f"better with the exchange 7 clients {samples['gained']} samples" in text
    assert f"better without it 0 clients {samples['lost']} samples" in text
    assert f"its own network {100 * figures['predictors']['head']['mean']:.1f}%" in text
    sizes = figures["added"]["sizes"]
    assert f"{sizes[0]['smallest']} to {sizes[0]['largest']} 7 " in text
    assert "added" in plots(added_folder)
    assert any("7 of 20 clients are above the line of equal accuracy, 0 below it" in alt for alt in alts(page))


def test_the_report_of_a_run_with_one_predictor_does_not_speak_of_what_was_added(report, run_folder):
    assert "federation added" not in report
    assert added_line(read_run(run_folder).summary) == ""
    assert "added" not in plots(run_folder)


def test_predictors_without_a_comparison_have_their_table_alone(tmp_path):
    folder = fabricate(tmp_path / "run", rounds=1, added=True, status="running")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for entry in (entry for line in lines if line["kind"] == "evaluation" for entry in line["clients"]):
        del entry["predictors"]["alone"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = added_text(Page(write_report(folder).read_text(encoding="utf-8")))
    assert text.startswith("Accuracy of each way to predict")
    assert "points" not in text
    assert "added" not in plots(folder)


def test_the_terminal_line_says_what_the_others_added(added_folder):
    added = read_run(added_folder).summary["added"]
    mean, low, high = (f"{100 * added['clients'][key]:.1f}" for key in ("difference", "low", "high"))
    line = added_line(read_run(added_folder).summary)
    assert line.startswith(f"What the others added: +{mean} points [{low}, {high}] for the average client, +")
    assert line.endswith(f"Without any exchange the average client has {100 * added['clients']['alone']:.1f}%.")
    assert "exact p" in line
    assert "chance" not in line


@pytest.mark.parametrize(
    ("clients", "p", "told"),
    [
        ({"low": -0.002, "high": 0.03}, 0.3, ["[−0.2, 3.0] (not told apart from chance) for the average client",
                                              "(not told apart from chance, exact p = 0.3)"]),
        ({"low": 0.002, "high": 0.03}, 1e-9, ["[0.2, 3.0] for the average client", "(exact p < 0.0001)"]),
        ({"low": -0.03, "high": -0.002}, 0.01, ["[−3.0, −0.2] for the average client", "(exact p = 0.01)"]),
        ({"low": None, "high": None}, 1.0, ["points (3 clients: too few for an interval) for the average client",
                                            "exact p = 1)"]),
    ],
)  # fmt: skip
def test_the_terminal_line_owns_up_to_chance(clients, p, told):
    figures = {"number": 3, "difference": 0.014, "alone": 0.5, **clients}
    line = added_line({"added": {"clients": figures, "samples": {"difference": -0.001, "p": p}}})
    for words in told:
        assert words in line
    assert "−0.1 points for the average test sample" in line


@pytest.mark.parametrize(("clients", "most"), [(1, 1), (500, 500), (3000, 1500)])
def test_the_drawing_of_what_was_added_stays_small(clients, most):
    entries = [
        {"total": 1000, "correct": 400 + i % 600, "predictors": {"alone": 400 + i * 7 % 550}} for i in range(clients)
    ]
    chart = exchanged_against_alone(entries)
    dots = re.findall(r"<use ", chart.svg)
    assert 1 <= len(dots) <= most + 40  # the ticks are marks too
    assert ("share a dot" in chart.caption) == (clients > 500)
    ElementTree.fromstring(chart.svg)


def test_both_axes_of_what_was_added_have_the_same_ticks():
    entries = [{"total": 40, "correct": 38, "predictors": {"alone": 34 + i}} for i in range(5)]
    ticks = re.findall(r">(\d+(?:\.\d)?)</text>", exchanged_against_alone(entries).svg)
    assert len(ticks) >= 6
    assert ticks[: len(ticks) // 2] == ticks[len(ticks) // 2 :]


def test_clients_without_a_comparison_are_not_drawn():
    entries = [{"total": 0, "correct": 0, "predictors": {"alone": 0}}, {"total": 5, "correct": 1}]
    assert exchanged_against_alone(entries) is None


def test_importing_the_reader_does_not_import_matplotlib_or_torch():
    code = "import sys, isoproto.report; sys.exit(bool({'matplotlib', 'torch', 'flwr'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0


def test_the_reference_of_the_run_folder_names_every_field_and_drawing(tmp_path):
    run_folder = fabricate(tmp_path / "run", rounds=2, failures=[("7", 1, "lost")], hyper=learned, added=True)
    write_report(run_folder)
    reference = (Path(__file__).parents[2] / "docs" / "run-folder.md").read_text(encoding="utf-8")

    def fields(value):
        if isinstance(value, dict):
            for key, part in value.items():
                yield key
                yield from fields(part)
        elif isinstance(value, list):
            for part in value:
                yield from fields(part)

    run = read_run(run_folder)
    written = [{k: v for k, v in run.summary.items() if k not in ("settings", "versions")}, *run.metrics]
    written += [json.loads((run_folder / "partition.json").read_text())]
    missing = {key for key in fields(written) if f"`{key}`" not in reference}
    assert missing == set()
    assert {path.name for path in (run_folder / "plots").iterdir()} <= set(
        re.findall(r"^\| `(\w+\.svg)`", reference, re.M)
    )
