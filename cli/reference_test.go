package cli

import (
	"bytes"
	"flag"
	"io"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/cli.md anew")

func TestReferenceIsCurrent(t *testing.T) {
	const file = "../docs/cli.md"
	var b bytes.Buffer
	writeReference(&b, New(strings.NewReader(""), io.Discard, io.Discard))
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, b.Bytes()) {
		t.Error("docs/cli.md is not what the commands say: run make generate")
	}
}
