package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/internal/input"
	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/transfer/sched"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// parseSize reads a number of bytes with an optional unit, as configuration files have it: 64,
// 4KiB, 1.5GiB.
func parseSize(s string) (uint64, error) {
	n, err := config.ParseSize(strings.TrimSpace(s))
	if err != nil {
		return 0, fmt.Errorf("%w: expected a number of bytes such as 64, 4KiB, 1MiB or 1GB", err)
	}
	return uint64(n), nil
}

// sizeFlag is the value of a flag that takes a number of bytes.
type sizeFlag uint64

func (v *sizeFlag) Set(s string) error {
	n, err := parseSize(s)
	*v = sizeFlag(n)
	return err
}

func (v *sizeFlag) String() string {
	if *v == 0 {
		return ""
	}
	return config.Size(*v).String()
}

func (v *sizeFlag) Type() string { return "SIZE" }

// sizesFlag is the value of a flag that takes several, with commas or given again.
type sizesFlag []uint64

func (v *sizesFlag) Set(s string) error {
	for x := range strings.SplitSeq(s, ",") {
		n, err := parseSize(x)
		if err != nil {
			return err
		}
		*v = append(*v, n)
	}
	return nil
}

func (v *sizesFlag) String() string {
	var out []string
	for _, n := range *v {
		out = append(out, config.Size(n).String())
	}
	return strings.Join(out, ",")
}

func (v *sizesFlag) Type() string { return "SIZES" }

// rateFlag is the value of a flag that takes bytes per second: a size, with or without /s, or a
// rate in bits per second.
type rateFlag uint64

func (v *rateFlag) Set(s string) error {
	s = strings.TrimSpace(s)
	n, err := config.ParseSize(strings.TrimSuffix(s, "/s"))
	if err != nil {
		bits, e := input.Quantity(s, input.Rates, 0)
		if e != nil {
			return fmt.Errorf("%w: expected bytes per second such as 10MB or 512KiB/s, or bits per second such as 1Gbps", err)
		}
		n = config.Size(bits / 8)
	}
	if n <= 0 || n > sched.MaxRate {
		return fmt.Errorf("expected 1 byte per second or more, such as 10MB")
	}
	*v = rateFlag(n)
	return nil
}

func (v *rateFlag) String() string {
	if *v == 0 {
		return ""
	}
	return config.Size(*v).String()
}

func (v *rateFlag) Type() string { return "RATE" }

// filterFlag is the value of the flags --include and --exclude of one command, whose order counts.
type filterFlag struct {
	filter  *share.Filter
	include bool
	given   []string
}

// addFilter adds --include and --exclude.
func addFilter(c *cobra.Command, f *share.Filter) {
	c.Flags().Var(&filterFlag{filter: f, include: true}, "include",
		"take names that match this `PATTERN`, whatever a later --exclude says (repeatable)")
	c.Flags().Var(&filterFlag{filter: f}, "exclude",
		"leave out names that match this `PATTERN`, such as '*.tmp' or logs/, whatever a later --include says "+
			"(repeatable)")
}

func (v *filterFlag) Set(s string) error {
	add := v.filter.Exclude
	if v.include {
		add = v.filter.Include
	}
	if err := add(s); err != nil {
		return err
	}
	v.given = append(v.given, s)
	return nil
}

func (v *filterFlag) String() string { return strings.Join(v.given, ",") }
func (v *filterFlag) Type() string   { return "PATTERN" }

// resultFlags adds the flags of a benchmark for its result and its conditions, or those for the
// result alone.
func resultFlags(c *cobra.Command, add func(bench.Flags)) {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	add(f)
	short := map[string]string{"quiet": "q", "output": "o"}
	f.VisitAll(func(x *pflag.Flag) {
		x.Shorthand = short[x.Name]
		c.Flags().AddFlag(x)
	})
	if f.Lookup("quiet") != nil {
		fromEnvironment(c, "quiet")
	}
}

// environmentKey is the annotation of a flag that an environment variable may give.
const environmentKey = "penstock-environment"

// fromEnvironment lets variables give flags that the command line leaves out: PENSTOCK_LOG_LEVEL
// the flag --log-level.
func fromEnvironment(c *cobra.Command, flags ...string) {
	for _, name := range flags {
		variable(c, name, "PENSTOCK_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
	}
}

func variable(c *cobra.Command, flag, name string) {
	f := c.Flags().Lookup(flag)
	_ = c.Flags().SetAnnotation(flag, environmentKey, []string{name}) // the flag exists
	f.Usage += " [" + name + "]"
}

// variableOf is the variable of a flag, "" if it has none.
func variableOf(f *pflag.Flag) string {
	if a := f.Annotations[environmentKey]; a != nil {
		return a[0]
	}
	return ""
}

// variables are all that any command takes.
func variables(root *cobra.Command) (out []string) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if v := variableOf(f); v != "" && !slices.Contains(out, v) {
				out = append(out, v)
			}
		})
		for _, s := range c.Commands() {
			walk(s)
		}
	}
	walk(root)
	slices.Sort(out)
	return out
}

// readEnvironment sets the flags of a command that the command line leaves out and a variable
// gives. They do not count as changed: a command that refuses a flag for what it does this time
// does not refuse the variable. A variable that is almost the name of one is an error, others
// belong to other programs.
func readEnvironment(c *cobra.Command) error {
	known := variables(c.Root())
	for _, x := range os.Environ() {
		name, _, _ := strings.Cut(x, "=")
		if !strings.HasPrefix(name, "PENSTOCK_") || slices.Contains(known, name) {
			continue
		}
		if meant := near(name, known); meant != "" {
			return &usageError{fmt.Errorf("environment: no flag is called for by %s: did you mean %s? \"penstock "+
				"help environment\" lists them", name, meant)}
		}
	}
	var err error
	c.Flags().VisitAll(func(f *pflag.Flag) {
		name := variableOf(f)
		value, there := os.LookupEnv(name)
		if err != nil || name == "" || !there || value == "" || f.Changed {
			return
		}
		if e := f.Value.Set(value); e != nil {
			err = &usageError{fmt.Errorf("environment: %s=%s: %s", name, value, invalidValue(f, e))}
		}
	})
	return err
}

// near is the known variable that a name is a typing error of, "" for none: a Kubernetes service
// called penstock makes PENSTOCK_PORT and others.
func near(name string, known []string) string {
	const prefix = "PENSTOCK_"
	var bare []string
	for _, k := range known {
		bare = append(bare, strings.TrimPrefix(k, prefix))
	}
	word := strings.TrimPrefix(name, prefix)
	meant := input.Nearest(word, bare)
	if meant == "" || meant[0] != word[0] || len(word) > len(meant)+2 || len(meant) > len(word)+2 {
		return ""
	}
	return prefix + meant
}

// invalidValue says what a flag takes.
func invalidValue(f *pflag.Flag, err error) string {
	switch f.Value.Type() {
	case "bool":
		return "expected true or false"
	case "duration":
		return "expected a time such as 500ms, 10s or 2m"
	case "int", "intSlice":
		return "expected a whole number"
	case "uint64":
		return "expected a whole number from 0"
	case "float64":
		return "expected a number"
	}
	return err.Error()
}

// flagError says what is wrong with a flag, and which one was probably meant.
func flagError(c *cobra.Command, err error) error {
	if x, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		f := x.GetFlag()
		err = fmt.Errorf("--%s %s: %s", f.Name, x.GetValue(), invalidValue(f, x.Unwrap()))
		if f.Name == "json" && f.Value.Type() == "bool" {
			err = fmt.Errorf("%w: --json is a switch and prints on the standard output", err)
		}
		return &usageError{err}
	}
	x, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return &usageError{err}
	}
	if x.GetSpecifiedShortnames() != "" {
		return &usageError{fmt.Errorf("%s has no flag -%s", c.CommandPath(), x.GetSpecifiedName())}
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	text := fmt.Sprintf("%s has no flag --%s", c.CommandPath(), x.GetSpecifiedName())
	if meant := input.Nearest(x.GetSpecifiedName(), names); meant != "" {
		text += fmt.Sprintf(": did you mean --%s?", meant)
	}
	return &usageError{errors.New(text)}
}

// subcommand refuses arguments of a command that has subcommands, and says which one was probably
// meant.
func subcommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, s := range c.Commands() {
		if !s.Hidden {
			names = append(names, s.Name())
		}
	}
	text := fmt.Sprintf("unknown command %q for %s", args[0], c.CommandPath())
	other := otherNames[args[0]]
	if near := input.Nearest(args[0], names); !c.HasParent() && other != "" {
		text += ": " + other
	} else if near != "" {
		text += ": " + meant(near)
	} else if c.HasParent() {
		text += ": expected " + strings.Join(names, ", ")
	}
	return &usageError{errors.New(text)}
}

func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &usageError{fmt.Errorf("unexpected argument %q%s", args[0], jsonHint(c))}
}

// jsonHint is for arguments that are one too many: the file of a switch, probably.
func jsonHint(c *cobra.Command) string {
	if f := c.Flags().Lookup("json"); f != nil && f.Changed && c.Flags().Lookup("output") != nil {
		return ": --json is a switch; --output FILE writes a file"
	}
	return ""
}
