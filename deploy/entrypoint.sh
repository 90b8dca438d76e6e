#!/bin/sh
# Says at once what would fail later and far from its cause, and which versions run here; then runs the command.
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
exec "$@"
