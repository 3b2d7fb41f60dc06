package guest

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

//go:embed init.sh
var initScript string

// imageLayout is part of the name of images: it changes when the code below writes other things for
// the same profile.
const imageLayout = "3"

// Directories of the host that are one directory in the guest, as they are on a Debian with a
// merged /usr.
var merged = [][2]string{{"/bin", "/usr/bin"}, {"/sbin", "/usr/bin"}, {"/usr/sbin", "/usr/bin"}, {"/lib", "/usr/lib"},
	{"/lib64", "/usr/lib64"}}

// guestPath is where a path leads in the guest.
func guestPath(p string) string {
	p = path.Clean("/" + p)
	for _, m := range merged {
		if rest, ok := strings.CutPrefix(p, m[0]+"/"); ok {
			return m[1] + "/" + rest
		}
	}
	return p
}

// hostFiles are the files of the host in an image: the path in the guest and the host's.
type hostFiles map[string]string

// collect finds the programs and files of a profile on this host with all libraries.
func collect(p Profile) (hostFiles, error) {
	out := hostFiles{}
	libs := newLibraryFinder()
	add := func(inGuest, file string) error {
		out[guestPath(inGuest)] = file
		return libs.add(file)
	}
	busybox, err := testenv.Tool("busybox", "busybox-static")
	if err != nil {
		return nil, err
	}
	if err := add("/bin/busybox", busybox); err != nil {
		return nil, err
	}
	// The shell for scripts is not busybox's own, which prefers its applets to the programs in
	// PATH: its ip knows no netem.
	for _, prog := range append([]Program{{"dash", "dash"}}, p.Programs...) {
		file, err := testenv.Tool(prog.Name, prog.Package)
		if err != nil {
			return nil, err
		}
		if err := add("/bin/"+prog.Name, file); err != nil {
			return nil, err
		}
	}
	for _, pattern := range p.Files {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("guest: %w: no file %s; on Debian: apt-get install %s", ErrMissing, pattern,
				p.Package)
		}
		for _, f := range files {
			if err := add(f, f); err != nil {
				return nil, err
			}
		}
	}
	for inGuest, file := range libs.found {
		out[inGuest] = file
	}
	return out, nil
}

// place writes the files into an archive. What are links on the host are links to one copy in the
// guest: libraries with state, such as DPDK's drivers, must not be there twice.
func (h hostFiles) place(c *cpioWriter) {
	copied := map[string]bool{}
	for _, inGuest := range h.sorted() {
		file := h[inGuest]
		if real, err := filepath.EvalSymlinks(file); err == nil {
			if at := guestPath(real); at != inGuest && strings.HasPrefix(at, "/usr/") {
				c.link(inGuest, at)
				inGuest, file = at, real
			}
		}
		if !copied[inGuest] {
			copied[inGuest] = true
			c.copyFrom(inGuest, 0o755, file)
		}
	}
}

// sorted are the paths in the guest.
func (h hostFiles) sorted() []string {
	var out []string
	for p := range h {
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

// buildImage returns the file in the cache that is the root file system of a profile with a kernel.
// It is made again when any file that goes into it has other contents.
func buildImage(ctx context.Context, p Profile, k kernel) (string, error) {
	files, err := collect(p)
	if err != nil {
		return "", err
	}
	var hostPaths []string
	for _, inGuest := range files.sorted() {
		hostPaths = append(hostPaths, files[inGuest])
	}
	content, err := testenv.HashFiles(hostPaths...)
	if err != nil {
		return "", err
	}
	key := "guest-image-" + p.Name + "-" + testenv.Hash(imageLayout, p, k.name, initScript, files.sorted(), content)
	prune("guest-image-" + p.Name + "-")
	return testenv.Cached(key, func(tmp string) error {
		f, err := os.Create(tmp)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := writeImage(ctx, f, p, k, files); err != nil {
			return fmt.Errorf("guest: image %s: %w", p.Name, err)
		}
		return f.Close()
	})
}

// prune removes what is in the cache under a name that begins so, once it is a month old; what is
// still in use is made again. The cache would otherwise grow with every kernel and every change of
// a program.
func prune(prefix string) {
	dir, err := testenv.CacheDir()
	if err != nil {
		return
	}
	old, _ := filepath.Glob(filepath.Join(dir, prefix+"*"))
	for _, f := range old {
		if st, err := os.Stat(f); err == nil && time.Since(st.ModTime()) > 30*24*time.Hour {
			os.RemoveAll(f)
		}
	}
}

// writeImage writes the root file system of a profile: the host's files, busybox's applets beside
// them, modules in the order they are loaded, and /init.
func writeImage(ctx context.Context, w io.Writer, p Profile, k kernel, files hostFiles) error {
	c := newCpio(w)
	for _, d := range []string{"/usr/bin", "/usr/lib", "/usr/lib64", guestLibraries, "/proc", "/sys", "/dev", "/tmp",
		"/run", "/root",
		"/etc", "/mnt", "/var/tmp", "/guest/modules"} {
		c.dir(d)
	}
	for _, m := range merged {
		c.link(m[0], m[1])
	}
	files.place(c)
	applets, err := output(ctx, "", files["/usr/bin/busybox"], "--list")
	if err != nil {
		return err
	}
	c.link("/var/run", "/run")
	c.link("/usr/bin/sh", "dash")
	for name := range strings.FieldsSeq(applets) {
		inGuest := "/usr/bin/" + name
		if _, taken := files[inGuest]; !taken && name != "sh" && !strings.Contains(name, "/") {
			c.link(inGuest, "busybox")
		}
	}
	c.file("/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"))
	c.file("/etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n"))
	c.file("/etc/hosts", 0o644, []byte("127.0.0.1 localhost\n::1 localhost\n10.9.0.1 guest1\n10.9.0.2 guest2\n"))
	c.file("/etc/nsswitch.conf", 0o644, []byte("passwd: files\ngroup: files\nhosts: files\n"))

	tree, err := readModules(k.modules)
	if err != nil {
		return err
	}
	// a guest loads none on demand, and every node asks whose a connection is
	mods, err := tree.resolve(ctx, append([]string{"tcp_diag"}, p.Modules...)...)
	if err != nil {
		return err
	}
	for i, m := range mods {
		c.file(fmt.Sprintf("/guest/modules/%03d-%s.ko", i, m.name), 0o644, m.image)
	}
	var names strings.Builder
	for i, n := range p.NICs {
		fmt.Fprintf(&names, "%s %s\n", nicMAC(i), n.Name)
	}
	c.file("/guest/nics", 0o644, []byte(names.String()))
	c.file("/guest/setup", 0o755, []byte("fail() { echo \"$*\"; exit 1; }\n"+p.Setup+"\n"))
	c.file("/init", 0o755, []byte(initScript))
	return c.close()
}

// nicMAC is the address of a profile's card, by which the guest knows its name; linkMAC that of the
// card between two guests.
func nicMAC(i int) string   { return fmt.Sprintf("52:54:00:70:00:%02x", i) }
func linkMAC(id int) string { return fmt.Sprintf("52:54:00:71:00:%02x", id) }
