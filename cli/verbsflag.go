package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/host/doctor"
	"github.com/penstock-io/penstock/transfer/path/drivers"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/verbs"
	"github.com/spf13/cobra"
)

// verbsFlag is the flag of commands that have paths over RDMA.
func verbsFlag(c *cobra.Command, to *[]string) {
	const flag = "verbs"
	c.Flags().StringSliceVar(to, flag, nil,
		"shape paths over RDMA by these `SETTINGS`, such as device=mlx5_0,queue_pairs=2 (keys: "+
			"docs/config.md#verbs_paths)")
	// The error says that there is no such flag; a test completes it.
	_ = c.RegisterFlagCompletionFunc(flag, func(c *cobra.Command, _ []string, typed string) ([]string,
		cobra.ShellCompDirective) {
		return completeVerbs(typed, func() []string { return doctor.Look(c.Context()).RDMADevices() })
	})
}

// completeVerbs goes on with KEY=VALUE,KEY=VALUE: keys that are not there yet, or the values of the
// last one.
func completeVerbs(typed string, devices func() []string) (out []string, _ cobra.ShellCompDirective) {
	before, last := "", typed
	if i := strings.LastIndexByte(typed, ','); i >= 0 {
		before, last = typed[:i+1], typed[i+1:]
	}
	key, _, valued := strings.Cut(last, "=")
	if !valued {
		for _, k := range config.VerbsKeys() {
			if strings.HasPrefix(k, key) && !slices.ContainsFunc(strings.Split(before, ","), func(s string) bool {
				return strings.HasPrefix(s, k+"=")
			}) {
				out = append(out, before+k+"=")
			}
		}
		return out, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	}
	words := config.VerbsWords(key)
	if key == "device" {
		words = devices()
	}
	for _, w := range words {
		if w = before + key + "=" + w; strings.HasPrefix(w, typed) {
			out = append(out, w)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// parseVerbs reads the flag --verbs of a command that was given these paths; nil paths are all.
func parseVerbs(paths, settings []string) (verbs.Options, error) {
	if settings == nil {
		return verbs.Options{}, nil
	}
	v, err := config.ParseVerbs(settings)
	if err != nil {
		return verbs.Options{}, &usageError{fmt.Errorf("--verbs: %w", err)}
	}
	if len(paths) > 0 && !slices.Contains(paths, verbs.Name) {
		return verbs.Options{},
			&usageError{errors.New("--verbs shapes the path verbs, which --path leaves out: add it there, or leave " +
				"out --verbs")}
	}
	return v.Options(), nil
}

// pathDrivers are the drivers of a node. A user who shapes paths over RDMA wants them: then it is
// an error if this machine cannot have them.
func pathDrivers(o drivers.Options, settings []string) (all []setup.Driver, err error) {
	if len(o.Names) == 0 {
		o.Names = nil
	}
	if o.Verbs, err = parseVerbs(o.Names, settings); err != nil {
		return nil, err
	}
	if all, err = drivers.New(o); err != nil {
		return nil, &usageError{fmt.Errorf("--%w", err)} // --path "NAME": ...
	}
	if settings != nil {
		for _, d := range all {
			if d.Name() != verbs.Name {
				continue
			}
			if err := drivers.Probe(d); err != nil {
				return nil, fmt.Errorf("--verbs: %w", err)
			}
		}
	}
	return all, nil
}
