package identity

import (
	"fmt"
	"strings"
)

// Rights are what a peer may do with a node.
type Rights uint8

// The rights. Each is given on its own; none implies another.
const (
	Read   Rights = 1 << iota // get bytes from exports, and borrow them
	Write                     // put bytes into exports
	List                      // see the names of exports that it did not ask for by name
	Status                    // see the node's snapshot: peers, paths, transfers
)

// All are all rights.
const All = Read | Write | List | Status

var rightNames = []string{"read", "write", "list", "status"}

// String is the form that [ParseRights] reads: "none", "all", or the names with commas between
// them.
func (r Rights) String() string {
	switch r {
	case 0:
		return "none"
	case All:
		return "all"
	}
	var out []string
	for i, n := range rightNames {
		if r&(1<<i) != 0 {
			out = append(out, n)
		}
	}
	if rest := r &^ All; rest != 0 {
		out = append(out, fmt.Sprintf("%#x", uint8(rest)))
	}
	return strings.Join(out, ",")
}

// ParseRights reads "none", "all", or a list such as "read,write,list,status" without spaces and
// without repetition.
func ParseRights(s string) (Rights, error) {
	switch s {
	case "none":
		return 0, nil
	case "all":
		return All, nil
	}
	var r Rights
next:
	for w := range strings.SplitSeq(s, ",") {
		for i, n := range rightNames {
			if w != n {
				continue
			}
			if r&(1<<i) != 0 {
				return 0, fmt.Errorf("identity: rights %q: %s is there twice: %w", clip(s), n, ErrPolicy)
			}
			r |= 1 << i
			continue next
		}
		return 0, fmt.Errorf("identity: rights %q: %q is not a right; expected none, all, or a list of read, write, "+
			"list, status: %w", clip(s), clip(w), ErrPolicy)
	}
	return r, nil
}

// Policy gives each peer its rights by the name in its certificate. It is asked when a session
// begins and may be asked again at any time, from any goroutine.
type Policy interface {
	Rights(name string) Rights
}

// Everyone is the policy that gives every peer the same rights.
type Everyone Rights

// Rights are the same for every name.
func (e Everyone) Rights(string) Rights { return Rights(e) }
