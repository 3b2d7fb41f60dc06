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
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
module=$(go list -m)
found=$(go env GOCACHE)/fuzz # where go test -fuzz keeps the inputs that reached something new
skipped=0
for dir in $(git grep -lE '^func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u); do
	if [ -n "$base" ] && git diff --quiet "$base" -- ":(glob)$dir/*.go" ":(exclude)*_test.go"; then
		skipped=$((skipped + 1))
		continue
	fi
	# One program has all targets of a package. It runs where go test runs it, so that a finding's input gets into its testdata.
	go test -c -vet=off -fuzz . -o "$work/fuzz" "./$dir"
	for target in $(cat "$dir"/*_test.go | sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p'); do
		echo "fuzz: ./$dir $target"
		(cd "$dir" && "$work/fuzz" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "${FUZZTIME:-30000x}" -test.fuzzminimizetime 20x \
			-test.fuzzcachedir "$found/$module/$dir" -test.timeout 10m) >"$work/log" 2>&1 || {
			cat "$work/log"
			exit 1
		}
		tail -n 2 "$work/log" | head -n 1
	done
done
[ -z "$base" ] || echo "fuzz: packages with targets that are as in $base: $skipped"
