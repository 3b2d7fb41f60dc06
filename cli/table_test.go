package cli

import (
	"path/filepath"
	"strings"
	"testing"
)

// A list keeps to its width: what does not fit goes below, under its title, and long texts are
// broken.
func TestList(t *testing.T) {
	l := list{indent: "  ", width: 30}
	l.add("name", "state", "of the driver", "last")
	l.add("eth0", "up", "basic redirect rx-sg ndo-xmit xsk-zerocopy", "1")
	l.add("a-longer-one", "down", "-", "22")
	var b strings.Builder
	if err := l.print(&b); err != nil {
		t.Fatal(err)
	}
	const want = `  name          state
      of the driver
      last
  eth0          up
      basic redirect rx-sg
      ndo-xmit xsk-zerocopy
      1
  a-longer-one  down
      -
      22
`
	if b.String() != want {
		t.Errorf("%s\nexpected\n%s", b.String(), want)
	}
	l.width, b = 200, strings.Builder{}
	if err := l.print(&b); err != nil || strings.Count(b.String(), "\n") != 3 || !strings.HasPrefix(b.String(),
		"  name          state  of the driver                               last\n  eth0          up     basic") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// What the commands list fits a terminal of 80 columns, whatever names are in it; a word alone may
// be longer.
func TestListsFit80Columns(t *testing.T) {
	dir := t.TempDir()
	name := strings.Repeat("llama-", 12) + "weights.bin"
	write(t, filepath.Join(dir, "models", name), content(3_000_000, 1))
	write(t, filepath.Join(dir, "models/b"), []byte("b"))
	_, addr := serve(t, filepath.Join(dir, "models"))
	run(t, 0, "", "get", addr+"/"+name, "-o", filepath.Join(dir, "copy"))
	node := "node-" + strings.Repeat("n", 40)
	ids := identities(t, node, "b")
	for _, args := range [][]string{
		{"ls", "-l", addr}, {"status", addr}, {"ping", addr}, {"pair", "list", "--dir", ids["server"]}, {"pair", "show", "--dir", ids["server"]},
		{"tune", "nic"}, {"tune", "driver"}, {"devices"}, {"doctor", "--list"}, {"help", "environment"},
	} {
		out, _ := run(t, 0, "", args...)
		if len(out) < 10 {
			t.Errorf("%v printed %q", args, out)
		}
		fits(t, strings.Join(args, " "), out)
	}
}
