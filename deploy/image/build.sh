#!/bin/sh
# Build one target of the Containerfile: build.sh ENGINE TARGET IMAGE BASE [argument of the engine's build]...
# A base that is named by a tag alone is pulled and taken by its digest, so that the label says what was built on.
set -eu

engine=$1 target=$2 image=$3 base=$4
shift 4
cd "$(dirname "$0")/../.."

if [ -z "$engine" ]; then
    echo "no container engine: install docker or podman, or name one with ENGINE=" >&2
    exit 1
fi
case $base in
    *@sha256:* | localhost/*) ;;
    *)
        "$engine" pull --quiet "$base" >&2
        digest=$("$engine" image inspect --format '{{index .RepoDigests 0}}' "$base")
        base="$base@${digest##*@}"
        echo "base: $base" >&2
        ;;
esac
argument=BASE
if [ "$target" = spark ]; then argument=SPARK_BASE; fi
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)

# A folder with what the image is made of and nothing else: each engine has its own file of what to leave out.
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
tar --create --exclude=__pycache__ pyproject.toml hatch_build.py README.md LICENSE deploy/image topics sidecar once spark reconsume pyspark_reconsume |
    tar --extract --directory "$context"
python3 -c 'import pathlib, runpy
print(runpy.run_path("sidecar/release.py")["checkout_commit"](pathlib.Path()))' > "$context/COMMIT"

"$engine" build --file "$context/deploy/image/Containerfile" --target "$target" --tag "$image:$version" \
    --build-arg "$argument=$base" --build-arg "VERSION=$version" \
    --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || true)" \
    --build-arg "CREATED=$(git log -1 --format=%cI 2>/dev/null || true)" "$@" "$context"
echo "$image:$version"
