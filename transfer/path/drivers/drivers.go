// Package drivers is the table of the transfer paths in this build.
// What a program knows of paths (their words on command lines and in configuration files, their
// options, what they need) it knows from here.
//
//	all, err := drivers.New(nil, false) // what the machine has, the best first
//	rdma, err := drivers.New([]string{"verbs?device=mlx5_0&queue_pairs=2"}, false)
//	drivers.Table = append(drivers.Table, &mine.Spec) // in an init function
//
// A path is a package with a setup.Spec, and one line in the table. What the machine lacks is still
// in the list that New makes: Probe tells, and a node leaves it out with the reason.
package drivers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/option"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/shm"
	"github.com/penstock-io/penstock/transfer/path/tcp"
	"github.com/penstock-io/penstock/transfer/path/verbs"
)

// Table is the paths of this build, the preferred one first. A path from outside is appended in an
// init function: what follows from the table is made once.
var Table = []*setup.Spec{
	&shm.Spec,
	&tcp.Spec,
	&verbs.Spec,
}

// Names are the names of all paths, the preferred one first.
func Names() (out []string) {
	for _, s := range Table {
		out = append(out, s.Name)
	}
	return out
}

// Find is the path that a text names, NAME or NAME?KEY=VALUE&..., with its options; they are nil
// where the text has none. The error does not repeat the text; it is an *option.Error where an
// option is wrong.
func Find(text string) (*setup.Spec, option.Settings, error) {
	name, query, asked := strings.Cut(text, "?")
	for _, s := range Table {
		if s.Name != name {
			continue
		}
		if !asked {
			return s, nil, nil
		}
		settings, err := option.List(s.Options).Read(query, "")
		if err != nil {
			return nil, nil, err
		}
		return s, settings, nil
	}
	return nil, nil, fmt.Errorf("expected %s", strings.Join(Names(), " or "))
}

// New makes the drivers of paths in order of preference, each path as Find has it and named once;
// nil is all of the table. Nothing is opened. insecure permits paths to other machines that are not
// encrypted: an attacker on the way can read and change everything.
func New(paths []string, insecure bool) ([]setup.Driver, error) {
	if paths == nil {
		paths = Names()
	}
	out := make([]setup.Driver, 0, len(paths))
	for _, text := range paths {
		s, settings, err := Find(text)
		if err != nil {
			return nil, fmt.Errorf("path %q: %w", text, err)
		}
		if slices.ContainsFunc(out, func(d setup.Driver) bool { return d.Name() == s.Name }) {
			return nil, fmt.Errorf("path %q is there twice: name each path once", s.Name)
		}
		d, err := s.Driver(settings, insecure)
		if c, ok := d.(setup.Checker); ok && err == nil {
			err = c.Check()
		}
		if err != nil {
			return nil, fmt.Errorf("path %q: %w", text, err)
		}
		out = append(out, d)
	}
	return out, nil
}

// All is the whole table as New takes it, with some of its paths as texts have them.
func All(texts ...string) []string {
	out := Names()
	for _, t := range texts {
		name, query, _ := strings.Cut(t, "?")
		for i, there := range out {
			switch before, _, asked := strings.Cut(there, "?"); {
			case before == name && asked:
				out[i] += "&" + query
			case before == name:
				out[i] = t
			}
		}
	}
	return out
}

// Probe says whether this machine can have paths of a driver now: nil, or what is missing and how
// to get it. It leaves nothing open.
func Probe(d setup.Driver) error {
	if p, ok := d.(setup.Prober); ok {
		return p.Probe()
	}
	return nil
}
