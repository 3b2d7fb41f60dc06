package sections

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/system"
)

// Here adds to what is missing all that opening the interfaces would miss on this machine, as
// system.MakePlan finds it. Run need not be preceded by it: it finds the same.
func (p *Plan) Here(c *config.Config, o Options) error {
	if slices.ContainsFunc(c.Needs(), func(d config.Diagnostic) bool { return d.Code == config.CodePlaceholder }) {
		return nil // what is filled in later is looked at then
	}
	part := p.part(c)
	plan, err := system.MakePlan(part, system.Options{Engines: o.Engines})
	if err != nil {
		return err
	}
	for _, d := range plan.Missing {
		path := d.Path
		for k := range part.Interfaces { // fewer than the file has
			if rest, ok := strings.CutPrefix(path, item("interfaces", k)); ok {
				path = item("interfaces", slices.IndexFunc(c.Interfaces, func(i config.Interface) bool {
					return i.Name == part.Interfaces[k].Name
				})) + rest
				break
			}
		}
		m := Missing{Path: path, At: place(c, path), Text: textOf(&d), Hint: d.Hint}
		switch at := slices.IndexFunc(p.Missing, func(m Missing) bool { return m.Path == path }); {
		case at < 0:
			p.Missing = append(p.Missing, m)
		case d.Code == config.CodeHost: // the engine knows more of it than Options.Host
			p.Missing[at] = m
		}
	}
	return nil
}

// textOf is what a diagnostic says, without its place and its hint.
func textOf(d *config.Diagnostic) string {
	if d.Expected == "" {
		return d.Message
	}
	return fmt.Sprintf("%s; expected %s", d.Message, d.Expected)
}
