package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/sections"
	"github.com/penstock-io/penstock/config"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// streamFile are the flags of penstock bench stream with a configuration file.
type streamFile struct {
	addresses, set []string
	role, record   string
	duration       time.Duration
	packets        uint64
	dry, strict    bool
}

func (x *streamFile) flags(f *pflag.FlagSet) {
	f.StringArrayVar(&x.addresses, "address", nil,
		"with FILE: NAME=ADDRESS opens the interface NAME there, such as tx_port=eth0 (repeat for more)")
	f.StringArrayVar(&x.set, "set", nil,
		"with FILE: PATH=VALUE replaces a value of it, such as 'bench_tx[*].batch_size=64' (repeat for more)")
	f.StringVar(&x.role, "role", "",
		"with FILE: which end of socket_bench_* or rdma_bench_* this is: server or client (default all that it has)")
	f.DurationVar(&x.duration, "duration", 10*time.Second,
		"with FILE: how long to send, and to receive where nothing else ends it; 0: until interrupted")
	f.Uint64Var(&x.packets, "packets", 0,
		"with FILE: packets of each sender, or without senders to receive in all (default as many as go in --duration)")
	f.StringVar(&x.record, "record", "",
		"with FILE: also write what receivers get to `OUT` (.pcapng, .pcap, .raw, and of batches .npy, .safetensors)")
	f.BoolVar(&x.dry, "dry-run", false, "with FILE: print what would run and what is missing, and open nothing")
	f.BoolVar(&x.strict, "strict", false,
		"with FILE: refuse what this machine has not, where something else could stand in")
}

// ofFile are the names of those flags, and withFile those of others that mean something with a file
// too.
var (
	ofFile   = []string{"address", "set", "role", "duration", "packets", "record", "dry-run", "strict"}
	withFile = []string{"engine", "settle", "samples", "json", "output", "quiet", "quick", "idle-wait", "seed"}
)

// misplaced is an error for flags that say nothing with a file, or nothing without one.
func misplaced(c *cobra.Command, file bool) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		own := slices.Contains(ofFile, f.Name)
		switch {
		case err != nil || f.Name == "help":
		case file && !own && !slices.Contains(withFile, f.Name) && c.LocalFlags().Lookup(f.Name) != nil:
			err = &usageError{fmt.Errorf("--%s is not for a configuration file, which says it itself; --set changes "+
				"what it says", f.Name)}
		case !file && own:
			err = &usageError{fmt.Errorf("--%s is for a configuration file: penstock bench stream FILE", f.Name)}
		}
	})
	return err
}

// settings are what the flags replace in the file.
func (x *streamFile) settings(engines []string) ([]config.Setting, error) {
	var out []config.Setting
	for _, a := range x.addresses {
		name, address, ok := strings.Cut(a, "=")
		if !ok || name == "" || address == "" || strings.ContainsAny(name, "[]") {
			return nil, &usageError{fmt.Errorf("--address %q: expected NAME=ADDRESS, such as tx_port=eth0", a)}
		}
		out = append(out, config.Setting{Path: "interfaces[" + name + "].address", Value: address})
	}
	switch len(engines) {
	case 0:
	case 1:
		out = append(out, config.Setting{Path: "engine", Value: engines[0]})
	default:
		return nil, &usageError{errors.New("--engine: a file has one, for the interfaces that name none")}
	}
	for _, s := range x.set {
		v, err := config.ParseSetting(s)
		if err != nil {
			return nil, &usageError{err}
		}
		out = append(out, v)
	}
	return out, nil
}

// runStreamFile runs the bench sections of a file.
func runStreamFile(c *cobra.Command, s streams, x *streamFile, name string, engines []string, settle time.Duration,
	samples int, out *bench.Output) error {
	set, err := x.settings(engines)
	if err != nil {
		return err
	}
	if x.duration < 0 {
		return &usageError{fmt.Errorf("--duration %v: expected a time, or 0 until interrupted", x.duration)}
	}
	o := sections.Options{Role: x.role, Duration: x.duration, Packets: x.packets, Settle: settle, Samples: samples,
		Record: x.record}
	if out.Quick && !c.Flags().Changed("duration") {
		o.Duration = 100 * time.Millisecond
	}
	if o.Duration == 0 || x.packets > 0 && !c.Flags().Changed("duration") {
		o.Duration = -1
	}
	if out.Quick && samples == 0 {
		o.Samples, o.Warmup = 100, -1
	}
	if x.role != "" && x.role != "server" && x.role != "client" {
		return &usageError{fmt.Errorf("--role %q: expected server or client", x.role)}
	}
	if x.dry && out.File != "" {
		return &usageError{errors.New("--dry-run has no result for a file: --json prints the plan")}
	}
	if o.Conditions, err = conditions(s, out); err != nil {
		return err
	}
	name, text, err := readConfig(s, name)
	if err != nil {
		return err
	}
	cfg, said := config.Load(name, text, config.Options{Set: set})
	if cfg == nil {
		return said.Err()
	}
	if o.Host, err = readHost(c.Context()); err != nil {
		return err
	}
	var changes []sections.Change
	if !x.strict {
		changes = sections.Fit(cfg, o.Host)
	}
	p := sections.MakePlan(cfg, o)
	if err := p.Here(cfg, o); err != nil {
		return err
	}
	if x.dry {
		return dryStream(s, p, changes, out.JSON)
	}
	r, err := sections.Run(c.Context(), cfg, p, changes, o)
	if r == nil {
		return err
	}
	return errors.Join(err, out.Write(s.out, r))
}

// dryStream prints a plan. What cannot run is no success.
func dryStream(s streams, p *sections.Plan, changes []sections.Change, asJSON bool) error {
	var err error
	if asJSON {
		if changes == nil {
			changes = []sections.Change{}
		}
		err = printJSON(s.out, map[string]any{"plan": p, "instead": changes, "ok": len(p.Missing) == 0})
	} else {
		var b strings.Builder
		err = p.Table(&b, changes)
		fmt.Fprint(s.out, printableText(b.String()))
	}
	if err == nil && len(p.Missing) > 0 {
		return errReportedUnfit
	}
	return err
}
