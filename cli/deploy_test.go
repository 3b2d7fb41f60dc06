package cli

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every command line in the files for containers, systemd and Kubernetes is one.
func TestDeployedCommands(t *testing.T) {
	list := func(s string) string {
		var words []string
		if err := json.Unmarshal([]byte(s), &words); err != nil {
			t.Errorf("%s: %v", s, err)
		}
		return strings.TrimPrefix(strings.Join(words, " "), "/penstock ")
	}
	same := func(s string) string { return s }
	for _, f := range []struct {
		file, pattern string
		count         int
		words         func(string) string
	}{
		{"Containerfile", `(?m)^CMD (\[.*\])$`, 1, list},
		{"penstock.service", `(?m)^ExecStart=\S+/penstock (.*)$`, 1, same},
		{"kubernetes.yaml", `(?m)^ *(?:args|command): (\[.*\])$`, 2, list},
		{"kubernetes-client.yaml", `(?m)^ *args: (\[.*\])$`, 1, list},
	} {
		b, err := os.ReadFile("../deploy/" + f.file)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(f.pattern).FindAllStringSubmatch(string(b), -1)
		if len(found) != f.count {
			t.Errorf("%s: %d command lines, expected %d", f.file, len(found), f.count)
		}
		for _, m := range found {
			if line := "penstock " + f.words(m[1]); understands(line, true) != nil {
				t.Errorf("%s: %s: %v", f.file, line, understands(line, true))
			}
		}
	}
}
