package guest

import (
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// An entry is what readCpio found under a name.
type entry struct {
	mode int
	data string
}

// readCpio reads an archive, or several in a row, as the kernel does: later entries replace earlier
// ones.
func readCpio(t *testing.T, b []byte) map[string]entry {
	t.Helper()
	out := map[string]entry{}
	total := len(b)
	align := func() { b = b[min((4-(total-len(b))%4)%4, len(b)):] }
	for len(b) > 0 {
		if string(b[:6]) != "070701" {
			t.Fatalf("no magic at byte %d: %q", total-len(b), b[:6])
		}
		field := func(i int) int {
			v, err := strconv.ParseUint(string(b[6+8*i:14+8*i]), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return int(v)
		}
		mode, size, namesize := field(1), field(6), field(11)
		name := string(b[110 : 110+namesize-1])
		if b[110+namesize-1] != 0 {
			t.Fatalf("the name %q does not end with a zero", name)
		}
		b = b[110+namesize:]
		align()
		data := string(b[:size])
		b = b[size:]
		align()
		if name == "TRAILER!!!" {
			continue
		}
		if dir := filepath.Dir(name); dir != "." && out[dir].mode&0o170000 != modeDir {
			t.Errorf("%s comes before its directory", name)
		}
		out[name] = entry{mode, data}
	}
	return out
}

func TestCpio(t *testing.T) {
	host := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(host, bytes.Repeat([]byte("x"), 4097), 0o600); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	c := newCpio(&b)
	c.dir("/a/b")
	c.file("/a/b/c", 0o644, []byte("12345"))
	c.link("/l", "/a/b")
	c.file("empty", 0o600, nil)
	c.copyFrom("/q/r/s", 0o755, host)
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	if b.Len()%4 != 0 {
		t.Errorf("the archive has %d bytes; the next one would not be aligned", b.Len())
	}
	c = newCpio(&b)
	c.file("/empty", 0o644, []byte("no more"))
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	got := readCpio(t, b.Bytes())
	want := map[string]entry{
		"a": {modeDir | 0o755, ""}, "a/b": {modeDir | 0o755, ""}, "a/b/c": {modeFile | 0o644, "12345"},
		"l":     {modeLink | 0o777, "/a/b"},
		"empty": {modeFile | 0o644, "no more"}, "q": {modeDir | 0o755, ""}, "q/r": {modeDir | 0o755, ""},
		"q/r/s": {modeFile | 0o755, strings.Repeat("x", 4097)},
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
	for _, bad := range []func(c *cpioWriter){
		func(c *cpioWriter) { c.copyFrom("/x", 0o644, filepath.Join(host, "none")) },
		func(c *cpioWriter) { c.copyFrom("/x", 0o644, t.TempDir()) },
		func(c *cpioWriter) { c.header("x", modeFile, 1<<32) },
	} {
		c := newCpio(new(bytes.Buffer))
		bad(c)
		if c.close() == nil {
			t.Error("an archive with a fault was closed without an error")
		}
	}
}

func TestPathInGuest(t *testing.T) {
	for in, want := range map[string]string{
		"/bin/ip": "/usr/bin/ip", "/usr/sbin/tc": "/usr/bin/tc", "/sbin/x": "/usr/bin/x",
		"/lib64/ld.so":                    "/usr/lib64/ld.so",
		"/lib/x86_64-linux-gnu/libc.so.6": "/usr/lib/x86_64-linux-gnu/libc.so.6", "/etc/x": "/etc/x",
		"/guest/bin/../run": "/guest/run",
		"/libx/y":           "/libx/y",
	} {
		if got := guestPath(in); got != want {
			t.Errorf("%s leads to %s, expected %s", in, got, want)
		}
	}
}

func TestRunArchive(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	s := Spec{Env: []string{"A=it's", "B=1=2"}, Files: []File{{script, "/guest/bin/script"}, {script, "/sbin/script"}}}
	if err := writeRun(&b, s, []string{"prog", "a b", "$x"}); err != nil {
		t.Fatal(err)
	}
	got := readCpio(t, append(base(t), b.Bytes()...))
	if want := "export A='it'\\''s'\nexport B='1=2'\nexec 'prog' 'a b' '$x'\n"; got["guest/run"].data != want {
		t.Errorf("run is %q, expected %q", got["guest/run"].data, want)
	}
	for _, name := range []string{"guest/bin/script", "usr/bin/script"} {
		if e := got[name]; e.data != "#!/bin/sh\n" || e.mode != modeFile|0o755 {
			t.Errorf("%s is %v", name, e)
		}
	}
	if e := got["sbin"]; e.mode&0o170000 != modeLink {
		t.Errorf("the archive of a run replaces the link sbin by %o", e.mode)
	}
}

// base is an archive with the directories and links that every image has.
func base(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	c := newCpio(&b)
	for _, d := range []string{"/usr/bin", "/usr/lib", "/usr/lib64", guestLibraries} {
		c.dir(d)
	}
	for _, m := range merged {
		c.link(m[0], m[1])
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestLibraries compares what is found for this machine's own programs with their ELF headers.
func TestLibraries(t *testing.T) {
	if _, err := os.Stat("/bin/sh"); err != nil {
		testenv.Missing(t, "/bin/sh", err)
	}
	l := newLibraryFinder()
	if err := l.add("/bin/sh"); err != nil {
		t.Fatal(err)
	}
	if static, err := isStatic("/bin/sh"); err != nil {
		t.Fatal(err)
	} else if !static && len(l.found) < 2 {
		t.Errorf("found %v; expected a linker and at least one library", l.found)
	}
	for inGuest, file := range l.found {
		f, err := elf.Open(file)
		if err != nil {
			t.Errorf("%s: %v", inGuest, err)
			continue
		}
		if f.Type != elf.ET_DYN {
			t.Errorf("%s is of type %v", file, f.Type)
		}
		f.Close()
	}
	script := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(script, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.add(script); err != nil {
		t.Errorf("a file that is no program: %v", err)
	}
	l.dirs = nil
	l.found = hostFiles{}
	if static, _ := isStatic("/bin/sh"); !static {
		if err := l.add("/bin/sh"); err == nil || !strings.Contains(err.Error(), "needs the library") {
			t.Errorf("without directories: %v", err)
		}
	}
}

// moduleFile is an ELF file with a section .modinfo.
func moduleFile(t *testing.T, depends string) []byte {
	t.Helper()
	const names = "\x00.shstrtab\x00.modinfo\x00"
	info := "license=GPL\x00depends=" + depends + "\x00name=x\x00"
	var b bytes.Buffer
	h := elf.Header64{Type: 1, Machine: 62, Version: 1, Ehsize: 64, Shentsize: 64, Shnum: 3, Shstrndx: 1}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	h.Shoff = uint64(64 + len(names) + len(info))
	for _, v := range []any{h, []byte(names), []byte(info), elf.Section64{},
		elf.Section64{Name: 1, Type: 3, Off: 64, Size: uint64(len(names))},
		elf.Section64{Name: 11, Type: 1, Off: uint64(64 + len(names)), Size: uint64(len(info))}} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func TestModules(t *testing.T) {
	dir := t.TempDir()
	put := func(file string, b []byte) {
		file = filepath.Join(dir, "kernel", file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write(moduleFile(t, ""))
	w.Close()
	put("net/top-one.ko", moduleFile(t, "mid,base"))
	put("net/mid.ko", moduleFile(t, "base,inside"))
	put("lib/base.ko.gz", z.Bytes())
	put("lib/other.ko", moduleFile(t, ""))
	put("net/ring1.ko", moduleFile(t, "ring2"))
	put("net/ring2.ko", moduleFile(t, "ring1"))
	put("net/lonely.ko", moduleFile(t, "nowhere"))
	if err := os.WriteFile(filepath.Join(dir, "modules.builtin"), []byte("kernel/lib/inside.ko\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tree, err := readModules(dir)
	if err != nil {
		t.Fatal(err)
	}
	mods, err := tree.resolve(context.Background(), "top_one", "other", "top-one", "inside")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range mods {
		names = append(names, m.name)
		if !bytes.HasPrefix(m.image, []byte("\x7fELF")) {
			t.Errorf("%s is not unpacked", m.name)
		}
	}
	if want := []string{"base", "mid", "top_one", "other"}; !slices.Equal(names, want) {
		t.Errorf("order %v, expected %v", names, want)
	}
	for name, want := range map[string]string{"ring1": "depends on itself",
		"lonely": "no module nowhere (needed by lonely)", "none": "no module none below"} {
		if _, err := tree.resolve(context.Background(), name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; expected %q", name, err, want)
		}
	}
	if _, err := dependencies([]byte("no ELF")); err == nil {
		t.Error("a file that is no module has dependencies")
	}
}

// bzImage is a bootable image with the given payload.
func bzImage(payload []byte) []byte {
	b := make([]byte, 5*512)
	b[0x1f1] = 3 // sectors of set-up code, after the first
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x206:], 0x20f)
	binary.LittleEndian.PutUint32(b[0x248:], 512)
	binary.LittleEndian.PutUint32(b[0x24c:], uint32(len(payload)))
	return append(b, payload...)
}

func TestExtract(t *testing.T) {
	kernel := append([]byte("\x7fELF"), bytes.Repeat([]byte("kernel"), 1000)...)
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write(kernel)
	w.Close()
	got, err := extract(t.Context(), bzImage(append(z.Bytes(), 1, 2, 3, 4)))
	if err != nil || !bytes.Equal(got, kernel) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	short := bzImage(z.Bytes())
	binary.LittleEndian.PutUint32(short[0x24c:], 1<<30)
	old := bzImage(z.Bytes())
	binary.LittleEndian.PutUint16(old[0x206:], 0x207)
	for i, bad := range []struct {
		image []byte
		want  string
	}{
		{[]byte("MZ"), "no header HdrS"}, {make([]byte, 4096), "no header HdrS"}, {short, "is said to be at"}, {old, "older than 2.08"},
		{bzImage([]byte("plain text")), "unknown way"}, {bzImage(gzipped("no kernel")), "not a kernel in ELF format"},
	} {
		if _, err := extract(t.Context(), bad.image); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%d: %v; expected %q", i, err, bad.want)
		}
	}
}

func gzipped(s string) []byte {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	fmt.Fprint(w, s)
	w.Close()
	return z.Bytes()
}

func TestProfiles(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Profiles() {
		if seen[p.Name] || p.Name == "" || p.About == "" || p.Memory == 0 || p.CPUs == 0 {
			t.Errorf("profile %+v", p)
		}
		seen[p.Name] = true
		if q, err := ProfileByName(p.Name); err != nil || q.Name != p.Name {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
	if _, err := ProfileByName("none"); err == nil || !strings.Contains(err.Error(), "net, rdma, nics, numa") {
		t.Error(err)
	}
	if _, err := Run(t.Context(), Spec{Profile: Numa, Guests: 2}, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "of a profile with a link") {
		t.Errorf("two guests without a cable: %v", err)
	}
	if !keepModule("drivers/net/veth.ko") || keepModule("drivers/net/wireless/x.ko") ||
		keepModule("sound/core/snd.ko") {
		t.Error("the wrong modules are kept")
	}
}

func TestArguments(t *testing.T) {
	args := strings.Join(arguments(Nics, kernel{image: "/k"}, 1, "tag", 3, 4, 5, 0, map[int][]int{2: {6, 7}}), " ")
	for _, want := range []string{"-kernel /k -initrd /proc/self/fd/3", "penstock=tag penstock.id=1 intel_iommu=on",
		"tap,id=n2,vhost=off,fds=6:7",
		"mac=52:54:00:70:00:02,disable-legacy=on,iommu_platform=on,ats=on,mq=on,vectors=6", "hubport,id=n0,hubid=1",
		"fd=4", "fd=5"} {
		if !strings.Contains(args, want) {
			t.Errorf("no %q in %s", want, args)
		}
	}
	if strings.Contains(args, "link") {
		t.Errorf("a link without a second guest: %s", args)
	}
	args = strings.Join(arguments(Net, kernel{}, 2, "tag", 3, 4, 5, 6, nil), " ")
	if want := "dgram,id=link,local.type=fd,local.str=6 -device e1000e,netdev=link,mac=52:54:00:71:00:02"; !strings.Contains(args, want) {
		t.Errorf("no %q in %s", want, args)
	}
}
