package host

import (
	"bytes"
	"context"
	"encoding/binary"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"
)

// Record reads a machine as Read does, and gives also what was read. What identifies the machine,
// its owner or other programs is left out before anything looks at it: see docs/doctor.md. Reading
// the recording gives the same facts.
func Record(ctx context.Context, tree fs.FS) (*Facts, *Recording) {
	w := &recorder{tree: tree, rec: newRecording()}
	f := Read(ctx, w)
	w.close()
	return f, w.rec
}

// recorder is a tree that notes what is read of another.
type recorder struct {
	tree   fs.FS
	rec    *Recording
	listed []string // directories in listings, of which perhaps nothing was read
	addrs  map[netip.Addr]int
}

func (w *recorder) Open(name string) (fs.File, error) {
	b, err := readFile(w.tree, name)
	if err != nil {
		w.failed(name, err)
		return nil, err
	}
	b, keep := scrub(name, b)
	if keep && path.Base(path.Dir(name)) == "gids" {
		b, keep = w.scrubAddr(b)
	}
	if !keep {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	isBinary := strings.HasPrefix(name, "sys/") && path.Base(name) == "config"
	if !isBinary {
		b = tidy(b)
	}
	w.rec.add(name, entry{data: b, binary: isBinary})
	return &file{Reader: bytes.NewReader(b), name: path.Base(name), size: int64(len(b))}, nil
}

func (w *recorder) failed(name string, err error) {
	if why := reason(err); why != reason(fs.ErrNotExist) && fs.ValidPath(name) && !unlisted(name) {
		w.rec.add(name, entry{err: strings.Join(strings.Fields(why), " ")})
	}
}

// scrubAddr puts another address of its kind in the place of an RDMA port's: those of IPv4 become
// 198.18.0.1 and on (or 169.254.0.1, if they are of one link), those of one link fe80::1 and on,
// and all others 2001:db8::1 and on. Equal ones stay equal. It says false for none at all.
func (w *recorder) scrubAddr(b []byte) ([]byte, bool) {
	a, err := netip.ParseAddr(strings.TrimSpace(string(b)))
	switch {
	case err != nil:
		return []byte("?\n"), true
	case a.IsUnspecified():
		return nil, false
	}
	n, ok := w.addrs[a]
	if !ok {
		if w.addrs == nil {
			w.addrs = map[netip.Addr]int{}
		}
		n = len(w.addrs) + 1
		w.addrs[a] = n
	}
	var x [16]byte
	switch u := a.Unmap(); {
	case u.Is4() && u.IsLinkLocalUnicast():
		copy(x[10:], []byte{0xff, 0xff, 169, 254})
	case u.Is4():
		copy(x[10:], []byte{0xff, 0xff, 198, 18})
	case u.IsLinkLocalUnicast():
		copy(x[:], []byte{0xfe, 0x80})
	default:
		copy(x[:], []byte{0x20, 0x01, 0x0d, 0xb8})
	}
	binary.BigEndian.PutUint16(x[14:], uint16(n))
	return []byte(netip.AddrFrom16(x).StringExpanded() + "\n"), true
}

// unlisted are the files of other processes, of which there is no trace.
func unlisted(name string) bool {
	return strings.HasPrefix(name, "proc/") && strings.HasSuffix(name, "/comm")
}

func (w *recorder) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(w.tree, name)
	if err != nil {
		w.failed(name, err)
		return nil, err
	}
	w.rec.add(name, entry{dir: true})
	if name != "proc" { // whose directories are other programs
		for _, e := range entries {
			if e.Type()&(fs.ModeDir|fs.ModeSymlink) != 0 {
				w.listed = append(w.listed, path.Join(name, e.Name()))
			}
		}
	}
	return entries, nil
}

// close adds the directories that were listed and of which nothing was read: that they are there is
// a fact.
func (w *recorder) close() {
	for _, name := range w.listed {
		_, file := w.rec.entries[name]
		if _, dir := w.rec.dirs[name]; !file && !dir {
			w.rec.add(name, entry{dir: true})
		}
	}
}

func (w *recorder) ReadLink(name string) (string, error) {
	to, err := fs.ReadLink(w.tree, name)
	if err != nil {
		w.failed(name, err)
		return "", err
	}
	w.rec.add(name, entry{link: to})
	return to, nil
}

func (w *recorder) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(w.tree, name) }

func (w *recorder) Stat(name string) (fs.FileInfo, error) {
	info, err := fs.Stat(w.tree, name)
	if err == nil {
		w.rec.add(name, entry{dir: true})
	}
	return info, err
}

// scrub leaves in a file only what Read uses. It returns false for a file that must not be in a
// recording.
func scrub(name string, b []byte) ([]byte, bool) {
	switch {
	case name == "proc/cmdline":
		var words []string
		for _, o := range parseCmdline(string(b)) {
			w := o.Name
			if o.Value != "" {
				w += "=" + o.Value
			}
			words = append(words, w)
		}
		return []byte(strings.Join(words, " ") + "\n"), true
	case name == "proc/cpuinfo":
		first, _, _ := strings.Cut(string(b), "\n\n")
		fields := parseFields(first)
		out := ""
		if slices.Contains(strings.Fields(fields["flags"]), "hypervisor") {
			out = "flags : hypervisor\n"
		}
		return []byte(out), true
	case name == "proc/modules":
		return lines(b, func(l string) (string, bool) {
			w, _, _ := strings.Cut(l, " ")
			return w, slices.Contains(modules, w)
		}), true
	case name == "proc/meminfo":
		return lines(b, starting("MemTotal:")), true
	case strings.HasPrefix(name, "sys/devices/system/node/") && path.Base(name) == "meminfo":
		return lines(b, func(l string) (string, bool) {
			return l, strings.Contains(l, " MemTotal:") || strings.Contains(l, " MemFree:")
		}), true
	case name == "proc/self/status":
		return lines(b, starting("CapEff:", "Cpus_allowed_list:", "Mems_allowed_list:")), true
	case name == "proc/self/limits":
		return lines(b, starting("Max locked memory")), true
	case unlisted(name):
		return b, slices.Contains(daemons, strings.TrimSpace(string(b)))
	case strings.HasPrefix(name, "proc/driver/nvidia/gpus/"):
		return lines(b, starting("Model:")), true
	case strings.HasPrefix(name, "etc/security/"):
		return lines(b, lockRuleOf), true
	case strings.HasPrefix(name, "etc/systemd/"):
		return lines(b, starting(lockOfSystemd)), true
	case strings.HasPrefix(name, "sys/") && path.Base(name) == "config":
		return scrubConfig(b), true
	case path.Base(name) == "resource": // those at the end of a device without
		const none = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
		for bytes.HasSuffix(b, []byte(none)) && len(b) > len(none) {
			b = bytes.TrimSuffix(b, []byte(none))
		}
		return b, true
	}
	return b, true
}

// lockRuleOf keeps a line of limits.conf(5) about locked memory, without names of users and groups.
func lockRuleOf(line string) (string, bool) {
	all := parseLockRules("", line)
	if len(all) == 0 {
		return "", false
	}
	x := all[0]
	switch {
	case x.Who == "*" || x.Who == "root":
	case strings.HasPrefix(x.Who, "@"):
		x.Who = "@group"
	default:
		x.Who = "user"
	}
	return x.Who + " " + x.Kind + " memlock " + x.Value, true
}

// tidy makes tabs blanks, and takes away those at the ends of lines: nothing that is read here
// cares.
func tidy(b []byte) []byte {
	var out bytes.Buffer
	for l := range strings.Lines(strings.ReplaceAll(string(b), "\t", " ")) {
		out.WriteString(strings.TrimRight(l, " \n") + "\n")
	}
	return out.Bytes()
}

func lines(b []byte, keep func(string) (string, bool)) []byte {
	var out bytes.Buffer
	for l := range strings.Lines(string(b)) {
		if l, ok := keep(strings.TrimRight(l, "\n")); ok {
			out.WriteString(l + "\n")
		}
	}
	return out.Bytes()
}

func starting(with ...string) func(string) (string, bool) {
	return func(l string) (string, bool) {
		return l, slices.ContainsFunc(with, func(w string) bool { return strings.HasPrefix(l, w) })
	}
}

// scrubConfig keeps of a configuration space what parseConfig looks at: other capabilities have
// serial numbers, which for network cards are their addresses.
func scrubConfig(c []byte) []byte {
	out := make([]byte, len(c))
	keep := func(at, n int) {
		if at+n <= len(c) {
			copy(out[at:], c[at:at+n])
		}
	}
	keep(0, 12) // vendor, device, status, class
	keep(pciCapPointer, 1)
	for _, x := range capabilities(c) {
		switch {
		case !x.extended && x.id == pciCapExpress:
			keep(x.at, expressLen)
		case !x.extended:
			keep(x.at, 2)
		case x.id == pciExtendedACS:
			keep(x.at, 8)
		default:
			keep(x.at, 4)
		}
	}
	return out
}
