package prog

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/packet/flow"
)

// OccupiedError says which program is on the interface already. It wraps ErrOccupied. Fields that
// could not be found out, for lack of rights, are 0 or empty.
type OccupiedError struct {
	Interface string
	ID        uint32 // of the program, as bpftool shows it
	Program   string // its name
	Link      uint32 // ID of the link that holds it; 0: it was attached without one, by "ip link" for instance
	Holders   []int  // processes that hold the program or its link
	Err       error  // the kernel's answer
}

func (e *OccupiedError) Error() string {
	what := "a program"
	if e.ID != 0 {
		what = fmt.Sprintf("program %d %q", e.ID, e.Program)
	}
	how := fmt.Sprintf("take it off with \"ip link set dev %s xdp off\"", e.Interface)
	if e.Link != 0 {
		what += fmt.Sprintf(" by link %d", e.Link)
		how = "end the process that holds the link"
	}
	if len(e.Holders) > 0 {
		var names []string
		for _, pid := range e.Holders {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			names = append(names, fmt.Sprintf("%d %q", pid, strings.TrimSpace(string(name))))
		}
		what += " of process " + strings.Join(names, ", ")
	}
	return fmt.Sprintf("prog: %v: %s has %s, which stays: %s (%v)", ErrOccupied, e.Interface, what, how, e.Err)
}

// Unwrap returns ErrOccupied and the kernel's error.
func (e *OccupiedError) Unwrap() []error { return []error{ErrOccupied, e.Err} }

// occupied looks for the program on the interface; nil if there is none.
func (p *Program) occupied(err error) error {
	l, e := device(p.spec.Interface)
	if e == nil && l.XDPMode == "" {
		return nil
	}
	id := l.XDPProgram
	o := &OccupiedError{Interface: p.name(), ID: id, Err: err}
	if q, err := ebpf.NewProgramFromID(ebpf.ProgramID(id)); err == nil {
		if i, err := q.Info(); err == nil {
			o.Program = i.Name
		}
		q.Close()
	}
	links := new(link.Iterator)
	defer links.Close()
	for links.Next() {
		i, err := links.Link.Info()
		if err == nil && i.Program == ebpf.ProgramID(id) && i.XDP() != nil &&
			i.XDP().Ifindex == uint32(p.spec.Interface) {
			o.Link = uint32(i.ID)
			break
		}
	}
	o.Holders = holders(o.ID, o.Link)
	return o
}

// holders are the processes that have descriptors of the program or the link.
func holders(program, link uint32) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*/fd")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		files, _ := os.ReadDir(dir)
		for _, f := range files {
			to, _ := os.Readlink(filepath.Join(dir, f.Name()))
			var want string
			switch {
			case strings.HasPrefix(to, "anon_inode:bpf-prog"):
				want = fmt.Sprintf("prog_id:\t%d\n", program)
			case strings.HasPrefix(to, "anon_inode:bpf_link") && link != 0:
				want = fmt.Sprintf("link_id:\t%d\n", link)
			default:
				continue
			}
			info, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, f.Name()))
			if strings.Contains(string(info), want) {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

// device finds the interface in the network namespace of the calling thread.
func device(ifindex int) (ethtool.Link, error) {
	all, err := ethtool.Links()
	if err != nil {
		return ethtool.Link{}, fmt.Errorf("prog: %w", err)
	}
	for _, l := range all {
		if l.Index == ifindex {
			return l, nil
		}
	}
	return ethtool.Link{}, fmt.Errorf("prog: interface %d: %w", ifindex, ErrInterface)
}

// TakenTags is the note of Info for rules that look at VLAN tags where the device takes them out of
// frames; "" where it leaves them, or no rule looks. It asks the device in the network namespace of
// the calling thread.
func TakenTags(device string, rules []flow.Rule) string {
	looks := slices.ContainsFunc(rules, func(r flow.Rule) bool {
		f := r.Match.Fields()
		return f.Has(flow.FieldVLAN) || f.Has(flow.FieldInnerVLAN)
	})
	if !looks || !strips(device) {
		return ""
	}
	return takenTags(device)
}

func takenTags(device string) string {
	return fmt.Sprintf("rules look at VLAN tags, but the device takes them out of frames (rx-vlan-hw-parse): "+
		"\"ethtool -K %s rxvlan off\" leaves them in", device)
}

// strips reports whether the device takes VLAN tags out of frames before the program sees them.
func strips(name string) bool {
	d, err := ethtool.Open(name)
	if err != nil {
		return false
	}
	defer d.Close()
	f, err := d.Feature(ethtool.FeatureRxVLAN)
	return err == nil && f.Active
}
