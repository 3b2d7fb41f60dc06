// Command wrap wraps the long lines of the Go files that are named, or of all that git knows.
//
//	go run ./internal/laws/wrap [FILE...]
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/penstock-io/penstock/internal/laws"
)

func main() {
	files, failed := os.Args[1:], false
	if len(files) == 0 {
		out, err := exec.Command("git", "ls-files", "*.go").Output()
		if err != nil {
			fmt.Fprintln(os.Stderr, "wrap: git ls-files:", err)
			os.Exit(1)
		}
		files = strings.Fields(string(out))
	}
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err == nil {
			var out []byte
			if out, err = laws.Wrap(src); err == nil && !bytes.Equal(out, src) {
				err = os.WriteFile(name, out, 0o644)
			}
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "wrap: %s: %v\n", name, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}
