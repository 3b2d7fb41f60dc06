package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRm(t *testing.T) {
	dir, dst := t.TempDir(), t.TempDir()
	for _, n := range []string{"a", "b", "c", "d e", "x/1", "x/2", "x/y/3", "xy", "kept/.hidden", "kept/4"} {
		write(t, filepath.Join(dir, n), []byte(n))
	}
	write(t, filepath.Join(dir, "t.npy"),
		[]byte("\x93NUMPY\x01\x00\x46\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"+
			strings.Repeat(" ", 12)+"\n1234"))
	server, addr := serve(t, dir, "--writable", "--removable")
	run(t, 0, "10 files fetched", "mirror", addr, dst)
	there := func(name string, want bool) {
		t.Helper()
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s is there: %v, expected %v", name, err == nil, want)
		}
	}
	printed := func(want string, args ...string) {
		t.Helper()
		if out, _ := run(t, 0, "", append([]string{"rm"}, args...)...); out != want {
			t.Errorf("rm %q printed %q, expected %q", args, out, want)
		}
	}

	printed("would remove a\n", addr+"/a", "-n")
	there("a", true)
	printed("remove a\n", addr+"/a")
	there("a", false)
	run(t, exitNotFound, `serves no "a"`, "rm", addr+"/a")
	printed("", "-f", addr+"/a")
	printed("remove b\nremove d e\n", addr, "b", "d e")
	out, _ := run(t, exitNotFound, "", "rm", addr+"/b", addr+"/c", "--json")
	all, last := events(t, out)
	if len(all) != 3 || all[0].Action != "fail" || all[1].Action != "remove" || all[1].Name != "c" ||
		*all[1].Bytes != 1 || last.Event != "result" || *last.OK || *last.Removed != 1 || *last.Failed != 1 ||
		*last.Status != exitNotFound {
		t.Errorf("events %s", out)
	}
	there("c", false)
	if out, errOut := run(t, 0, "", "rm", "-q", addr, "-f", "b"); out+errOut != "" {
		t.Errorf("%q, %q", out, errOut)
	}

	run(t, exitNotFound, "x is a directory of the peer: penstock rm -r ", "rm", "-r", addr+"/x")
	run(t, exitUsage, "x/ names a directory: expected -r", "rm", addr+"/x/")
	run(t, exitNotFound, "serves nothing below z/", "rm", "-r", addr+"/z/")
	run(t, 0, "", "rm", "-rf", addr+"/z/")
	printed("would remove x/1\nwould remove x/2\nwould remove x/y/3\n", "-rn", addr+"/x/")
	there("x/y/3", true)
	if _, errOut := run(t, 0, "", "rm", "-r", addr, "x/"); !strings.Contains(errOut, "3 files removed (11 B)") {
		t.Errorf("%q", errOut)
	}
	there("x", false)
	there("xy", true)
	printed("remove kept/4\n", "-r", addr+"/kept/")
	there("kept/.hidden", true)
	run(t, exitFailure, `a tensor in the file "t.npy"`, "rm", addr+"/t.npy/array")
	run(t, exitFailure, `"t.npy"`, "rm", "-r", addr+"/t.npy/")
	there("t.npy", true)
	run(t, exitFailure, "2 names failed", "rm", addr+"/t.npy/array", addr+"/a") // for different reasons
	run(t, 0, "8 removed", "mirror", addr, dst, "--delete")
	for _, want := range []string{"may list, read, add and remove files", "removed x/y/3, 5 B"} {
		if !strings.Contains(server.Output(), want) {
			t.Errorf("serve does not say %q:\n%s", want, server.Output())
		}
	}

	for _, flags := range [][]string{nil, {"--writable"}} {
		_, addr = serve(t, append([]string{dir}, flags...)...)
		run(t, exitNotPermitted, "lets no peer remove files: that needs penstock serve DIR --writable --removable",
			"rm", addr+"/xy")
		run(t, exitNotPermitted, "lets no peer", "rm", "-f", "-n", addr+"/xy")
		out, _ := run(t, exitNotPermitted, "lets no peer", "rm", addr, "xy", "t.npy")
		if out != "" {
			t.Errorf("%q", out)
		}
	}
	there("xy", true)
	run(t, exitUsage, "add --writable", "serve", dir, "--removable")
}

// No command line removes everything that a peer serves.
func TestParseRmArgs(t *testing.T) {
	const at = "tcp://127.0.0.1:7070"
	for _, c := range []struct {
		args string
		addr string
		want string // names, or the error
	}{
		{"127.0.0.1:7070/a", at, "a"},
		{"tcp://127.0.0.1/a 127.0.0.1:7070/b/c", at, "a b/c"},
		{"127.0.0.1:7070 a 127.0.0.1:7070/b", at, "a 127.0.0.1:7070/b"},
		{"-r 127.0.0.1:7070/a/ 127.0.0.1:7070/b", at, "a/ b"},
		{"-r 127.0.0.1:7070 a/", at, "a/"},
		{"127.0.0.1:7070", "", "names no file"},
		{"127.0.0.1:7070/", "", "names everything"},
		{"-r 127.0.0.1:7070/", "", "names everything"},
		{"-r 127.0.0.1:7070/ a", "", "expected tcp://"},
		{"-r 127.0.0.1:7070/a 127.0.0.1:7070/", "", "names everything"},
		{"-r 127.0.0.1:7070/a 127.0.0.1:7070", "", "names everything"},
		{"127.0.0.1:7070/a/", "", "expected -r"},
		{"127.0.0.1:7070 a/", "", "expected -r"},
		{"127.0.0.1:7070/a 127.0.0.1:7071/b", "", "names of one peer"},
		{"127.0.0.1:7070/a b", "", "expected tcp://"},
		{"unix:///nowhere/at/all", "", "PATH is a socket"},
	} {
		args := strings.Fields(c.args)
		recursive := args[0] == "-r"
		if recursive {
			args = args[1:]
		}
		addr, names, err := parseRmArgs(args, recursive)
		switch {
		case c.addr == "":
			if err == nil || !strings.Contains(err.Error(), c.want) || exitStatus(err) != exitUsage {
				t.Errorf("%q: %q, %q, %v; expected %q", c.args, addr, names, err, c.want)
			}
		case err != nil || addr != c.addr || strings.Join(names, " ") != c.want:
			t.Errorf("%q: %q, %q, %v", c.args, addr, names, err)
		}
	}
	if _, _, err := parseRmArgs([]string{"127.0.0.1:7070", ""}, true); err == nil ||
		!strings.Contains(err.Error(), "everything") {
		t.Error(err)
	}
}
