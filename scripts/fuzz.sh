#!/bin/sh
# Fuzzes the packages whose code, without tests, differs from that of BASE; without BASE, or where git does not know it, all packages with a target.
#
#   fuzz.sh [BASE]
#
# FUZZTIME is the budget of one target, as -fuzztime of go test takes it. A count of executions is the default: with a duration Go's
# coordinator can end a good run as "context deadline exceeded" (go.dev/issue/75804). The seeds of each target run with every go test.
set -eu
base=${1:-}
if [ -n "$base" ] && ! git rev-parse -q --verify "$base^{commit}" >/dev/null; then
	echo "fuzz: no commit $base: all packages are fuzzed"
	base=
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
skipped=0
for file in $(git grep -lE '^func Fuzz' -- '*_test.go'); do
	dir=$(dirname "$file")
	if [ -n "$base" ] && git diff --quiet "$base" -- ":(glob)$dir/*.go" ":(exclude)*_test.go"; then
		skipped=$((skipped + 1))
		continue
	fi
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file"); do
		echo "fuzz: ./$dir $target"
		go test -vet=off -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-30000x}" -fuzzminimizetime 20x "./$dir" >"$log" 2>&1 || {
			cat "$log"
			exit 1
		}
		tail -n 1 "$log"
	done
done
[ -z "$base" ] || echo "fuzz: files with targets in packages as they are in $base: $skipped"
