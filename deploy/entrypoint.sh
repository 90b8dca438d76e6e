#!/bin/sh
# The entrypoint of the image. First it stops with a clear error if this user cannot read the keys or write the state:
# without that check, the command would fail later, far from the cause. Then it prints the versions and runs the command.
# When a SuperNode ends by itself, it prints what the reason may be.
set -eu

for secret in /run/secrets/*; do
    [ -e "$secret" ] || continue
    [ -r "$secret" ] || {
        echo "error: $secret belongs to user $(stat -c %u "$secret"), and this container runs as user $(id -u):" \
            "set ISOPROTO_UID=$(stat -c %u "$secret"), or give the file to user $(id -u)" >&2
        exit 1
    }
done
[ -w "$ISOPROTO_HOME" ] || {
    echo "error: user $(id -u) cannot write to $ISOPROTO_HOME: mount a volume there that this user may write to" >&2
    exit 1
}
python - <<'END'
import importlib.metadata as found, importlib.util as code
versions = ", ".join(f"{name} {found.version(name)}" for name in ("isoproto", "flwr", "torch"))
print(f"{versions}; isoproto from {code.find_spec('isoproto').submodule_search_locations[0]}", flush=True)
END
[ "${1:-}" = flower-supernode ] || exec "$@"

stopped=
shift
isoproto supernode "$@" & # flower-supernode, but the process ends with its connection (isoproto/deploy/supernode.py)
trap 'stopped=yes; kill -TERM $!' INT TERM
while :; do
    status=0
    wait $! || status=$?
    kill -0 $! 2>/dev/null || break # it has ended; else a signal cut `wait` short, and the SuperNode still runs
done
[ "$stopped" ] || echo "error: the SuperNode ended by itself, with status $status, and is started again. If it could not" \
    "be activated ([code: 2004]) or got status 401, the SuperLink does not take its key: it is not enrolled" \
    "(isoproto keys enrol), was revoked, or its session before a crash counts as alive for another minute" >&2
exit $status
