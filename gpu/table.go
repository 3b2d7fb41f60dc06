package gpu

import (
	"fmt"
	"strings"
)

// Entry is a runtime that may be here.
type Entry struct {
	Name string                   // "cuda"
	Open func() (*Runtime, error) // an error that wraps ErrUnavailable where it is not here
}

// Table is the runtimes of a build, the preferred one first. Package gpu/runtimes has that of this
// one.
type Table []Entry

// Names are the names of the runtimes, in order.
func (t Table) Names() []string {
	var names []string
	for _, e := range t {
		names = append(names, e.Name)
	}
	return names
}

// Skipped is a runtime that Open did not take, and why.
type Skipped struct {
	Name string
	Err  error
}

// Choice is the runtime that Table.Open took, and what it passed over.
type Choice struct {
	*Runtime
	Skipped []Skipped // those that are preferred and are not here
}

// String says what was taken instead of what, for people: "host, because cuda: no libcuda.so.1
// ...".
func (c Choice) String() string {
	if len(c.Skipped) == 0 {
		return c.Name()
	}
	var why []string
	for _, s := range c.Skipped {
		why = append(why, fmt.Sprintf("%s: %v", s.Name, s.Err))
	}
	return c.Name() + ", because " + strings.Join(why, "; ")
}

// Open opens the runtime called name, or with "" the first that is here. The caller closes it, and
// should tell its user Choice.Skipped: nothing falls back in silence. An unknown name is an error
// that wraps ErrArgument and lists the names; when none is here the error has what each one said.
func (t Table) Open(name string) (Choice, error) {
	var skipped []Skipped
	for _, e := range t {
		if name != "" && e.Name != name {
			continue
		}
		r, err := e.Open()
		if err == nil {
			return Choice{r, skipped}, nil
		}
		if name != "" {
			return Choice{}, err
		}
		skipped = append(skipped, Skipped{e.Name, err})
	}
	if name != "" {
		return Choice{}, fmt.Errorf("gpu: %w: no runtime %q: expected one of %s", ErrArgument, name,
			strings.Join(t.Names(), ", "))
	}
	err := fmt.Errorf("gpu: %w", ErrUnavailable)
	for _, s := range skipped {
		err = fmt.Errorf("%w; %s: %w", err, s.Name, s.Err)
	}
	return Choice{}, err
}
