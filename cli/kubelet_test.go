package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
)

// kubelet makes $VOLUME as the kubelet makes a secret's volume for the group $GROUP, with the files
// of $IDENTITY with $MODE: a file system in memory that everybody may write to, a directory named
// by the time, a link ..data to it, a link to each file. It mounts that at $AT with $MOUNT, and
// runs the program as user and group 65532 with $GROUP. With a line of its input it replaces the
// files by those of $NEXT, as the kubelet does when the secret changes.
const kubelet = `
mount -t tmpfs -o mode=1777 tmpfs "$VOLUME"
chgrp "$GROUP" "$VOLUME"
chmod 3777 "$VOLUME"
place() {
	mkdir "$VOLUME/..$2"
	cp "$1"/* "$VOLUME/..$2/"
	chmod "$MODE" "$VOLUME/..$2"/*
	chgrp -R "$GROUP" "$VOLUME/..$2"
	chmod 2755 "$VOLUME/..$2"
	ln -s "..$2" "$VOLUME/..tmp"
	mv -T "$VOLUME/..tmp" "$VOLUME/..data"
}
place "$IDENTITY" 2026_11_29_10_00_00.1
for f in node.pem ca.pem policy; do ln -s "..data/$f" "$VOLUME/$f"; done
mount --bind "$VOLUME" "$AT"
mount -o "remount,bind,$MOUNT" "$AT"
exec 3<&0
(read line <&3 && place "$NEXT" 2026_11_29_10_05_00.2) &
exec setpriv --reuid 65532 --regid 65532 --groups "$GROUP" "$@" 3<&- </dev/null`

// TestSecretOfKubernetes starts the program with an identity in a volume as the kubelet makes it,
// then with volumes that are not safe.
func TestSecretOfKubernetes(t *testing.T) {
	for _, tool := range []string{"unshare", "setpriv", "mount"} {
		if _, err := testenv.Tool(tool, "util-linux"); err != nil {
			testenv.Missing(t, tool, err)
		}
	}
	dirs := identities(t, "worker")
	served, open := t.TempDir(), t.TempDir()
	b := content(1000, 12)
	write(t, filepath.Join(served, "w"), b)
	if err := os.Remove(filepath.Join(dirs["server"], "authority.pem")); err != nil { // no part of the secret
		t.Fatal(err)
	}
	write(t, filepath.Join(dirs["server"], "policy"), []byte("allow worker list\n"))
	next := t.TempDir()
	for _, name := range []string{"node.pem", "ca.pem"} {
		b, err := os.ReadFile(filepath.Join(dirs["server"], name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(next, name), b)
	}
	write(t, filepath.Join(next, "policy"), []byte("allow worker list,read\n"))
	volume, at := filepath.Join(open, "volume"), filepath.Join(open, "at")
	for _, d := range []string{volume, at} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{served, open} { // another user serves them
		for ; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	public := program().As(t, 65532).Path
	pod := func(mode, mount, group string) *proc.Process {
		t.Helper()
		s := program("--mount", "sh", "-ec", kubelet, "kubelet", public, "serve", served, "--listen",
			"tcp://127.0.0.1:0", "--identity", at)
		s.Path, s.Input = "unshare", true
		s.Env = append(s.Env, "VOLUME="+volume, "AT="+at, "IDENTITY="+dirs["server"], "NEXT="+next, "MODE="+mode,
			"MOUNT="+mount, "GROUP="+group)
		return proc.Start(t, s)
	}

	p := pod("0440", "ro", "4711")
	m, err := p.WaitLine(limit(t), servedNamed)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "w")
	get := []string{"get", "tcp://server@" + m[1] + "/w", "-o", out, "--identity", dirs["worker"]}
	run(t, exitNotPermitted, "", get...)
	if _, err := fmt.Fprintln(p.Input()); err != nil {
		t.Fatal(err)
	}
	for ctx := limit(t); ; { // the program looks for a change once in a second
		_, errOut, status := penstock(t, get...)
		if status == 0 {
			break
		}
		if ctx.Err() != nil || status != exitNotPermitted {
			t.Fatalf("get after the secret changed: status %d, %s", status, errOut)
		}
	}
	same(t, out, b)

	for _, c := range []struct{ what, mode, mount, group, want string }{
		{"a mount that can be written to", "0440", "rw", "4711",
			"identity: " + at + " has mode 3777, so that others can replace what is in it: expected 0755, 0700, or a " +
				"read-only mount: .*; fix it with: chmod go-w " + at},
		{"files for everybody, as without defaultMode", "0644", "ro", "4711",
			"node.pem holds a key and has mode 0644, owner 0 and group 4711, .*expected 0600 or, .*0440: " +
				".*defaultMode: 0400"},
		{"files for root alone, as without fsGroup", "0400", "ro", "0",
			"node.pem: permission denied: it has mode 0400, owner 0 and group 0: expected .*fsGroup: 65532"},
		{"files that the group can write", "0460", "ro", "4711", "node.pem holds a key and has mode 0460"},
	} {
		p := pod(c.mode, c.mount, c.group)
		if e, err := p.Wait(limit(t)); err != nil || e.Code != exitNotPermitted ||
			!regexp.MustCompile(c.want).MatchString(p.Output()) || strings.Contains(p.Output(), "tcp://") {
			t.Errorf("%s: %v, %v\n%s", c.what, e, err, p.Output())
		}
	}
}
