package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// state is what a run of tests must leave as it found it. Each set maps a thing to words for
// people.
type state struct {
	mounts  map[string]string
	devices map[string]string // network devices of this namespace
	// named after the project, in the places for temporary and shared files; named namespaces
	files     map[string]string
	hugePages map[string]int // pages in the pool, in use and reserved, by size
}

// sharedPlaces are the directories in which programs leave what outlives them.
var sharedPlaces = []string{"/tmp", "/var/tmp", "/dev/shm", "/run", "/run/netns"}

// observe reads the state of the machine. A namespace without a name lives as long as a process or
// a mount in it, which are looked at, so it needs no look of its own.
func observe() (state, error) {
	s := state{map[string]string{}, map[string]string{}, map[string]string{}, map[string]int{}}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 {
			s.mounts[f[0]] = f[4]
		}
	}
	ifs, err := net.Interfaces()
	if err != nil {
		return s, err
	}
	for _, i := range ifs {
		s.devices[i.Name] = i.HardwareAddr.String()
	}
	for _, dir := range sharedPlaces {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return s, err
		}
		for _, e := range entries {
			if dir == "/run/netns" || strings.Contains(strings.ToLower(e.Name()), "penstock") {
				s.files[filepath.Join(dir, e.Name())] = e.Type().String()
			}
		}
	}
	return s, s.readHugePages("/sys/kernel/mm/hugepages")
}

// readHugePages counts, for each size, the pages that exist and those that are in use or promised.
func (s state) readHugePages(dir string) error {
	sizes, err := filepath.Glob(dir + "/hugepages-*")
	if err != nil {
		return err
	}
	for _, size := range sizes {
		n := map[string]int{}
		for _, name := range []string{"nr_hugepages", "free_hugepages", "resv_hugepages"} {
			b, err := os.ReadFile(filepath.Join(size, name))
			if err != nil {
				return err
			}
			if n[name], err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
				return fmt.Errorf("%s/%s: %w", size, name, err)
			}
		}
		base := filepath.Base(size)
		s.hugePages[base+": pages in the pool"] = n["nr_hugepages"]
		s.hugePages[base+": pages in use"] = n["nr_hugepages"] - n["free_hugepages"]
		s.hugePages[base+": pages reserved"] = n["resv_hugepages"]
	}
	return nil
}

// since lists, for people, what is there now and was not there before.
func (s state) since(before state) []string {
	var out []string
	for _, set := range []struct {
		what        string
		now, before map[string]string
	}{
		{"mount", s.mounts, before.mounts},
		{"network device", s.devices, before.devices},
		{"file", s.files, before.files},
	} {
		for k, v := range set.now {
			if _, ok := set.before[k]; !ok {
				out = append(out, fmt.Sprintf("%s %s %s", set.what, k, v))
			}
		}
	}
	for k, n := range s.hugePages {
		if n != before.hugePages[k] {
			out = append(out, fmt.Sprintf("%s: %d, and before %d", k, n, before.hugePages[k]))
		}
	}
	slices.Sort(out)
	return out
}

// process is one line of the process table.
type process struct {
	pid, parent int
	state       string
	command     string
}

// descendants lists the processes below pid.
func descendants(pid int) ([]process, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := map[int][]process{}
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		p, err := parseStat(string(b))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		if cmd, err := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline")); err == nil && len(cmd) > 0 {
			p.command = strings.TrimSpace(strings.ReplaceAll(string(cmd), "\x00", " "))
		}
		children[p.parent] = append(children[p.parent], p)
	}
	var out []process
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		for _, c := range children[queue[0]] {
			out = append(out, c)
			queue = append(queue, c.pid)
		}
	}
	return out, nil
}

// parseStat reads the start of a line of /proc/PID/stat: number, name in parentheses (which may
// hold anything), state, parent.
func parseStat(line string) (process, error) {
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return process{}, fmt.Errorf("no name in %q", line)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line[:open]))
	rest := strings.Fields(line[end+1:])
	if err != nil || len(rest) < 2 {
		return process{}, fmt.Errorf("no process number or state in %q", line)
	}
	parent, err := strconv.Atoi(rest[1])
	if err != nil {
		return process{}, fmt.Errorf("no parent in %q", line)
	}
	return process{pid, parent, rest[0], line[open+1 : end]}, nil
}
