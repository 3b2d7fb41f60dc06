package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/host/doctor"
	"github.com/penstock-io/penstock/internal/option"
	"github.com/penstock-io/penstock/transfer/path/drivers"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/verbs"
	"github.com/spf13/cobra"
)

// pathFlag is the flag of commands that move bytes; what and rest are the words around the names of
// paths. older gets the values of --verbs, which is hidden: it was there before options of paths
// were.
func pathFlag(c *cobra.Command, to, older *[]string, what, rest string) {
	c.Flags().StringSliceVar(to, "path", nil, fmt.Sprintf("%s: %s, with options as in "+
		"'verbs?device=mlx5_0&queue_pairs=2' (docs/config.md#transfers) (default: %s)",
		what, strings.Join(drivers.Names(), ", "), rest))
	c.Flags().StringSliceVar(older, "verbs", nil, "`SETTINGS` of the path verbs, with commas between them; see --path")
	_ = c.Flags().MarkHidden("verbs") // the flag exists
	// The error says that there is no such flag; a test completes it.
	_ = c.RegisterFlagCompletionFunc("path",
		func(c *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			return completePaths(typed, func() []string { return doctor.Look(c.Context()).RDMADevices() })
		})
}

// completePaths goes on with paths: names that are not there yet, or the options of the last one.
func completePaths(typed string, devices func() []string) (out []string, _ cobra.ShellCompDirective) {
	const more = cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	i := strings.LastIndexByte(typed, ',') + 1
	name, query, asked := strings.Cut(typed[i:], "?")
	if !asked {
		for _, n := range drivers.Names() {
			if strings.HasPrefix(n, name) && !slices.Contains(strings.Split(typed[:i], ","), n) {
				out = append(out, typed[:i]+n)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	query = query[strings.LastIndexByte(query, '&')+1:]
	before := strings.TrimSuffix(typed, query)
	key, value, valued := strings.Cut(query, "=")
	for _, s := range drivers.Table {
		for _, o := range s.Options {
			switch {
			case s.Name != name:
			case !valued:
				if strings.HasPrefix(o.Key, key) && !strings.Contains(before[i:], o.Key+"=") {
					out = append(out, before+o.Key+"=")
				}
			case o.Key == key:
				words := o.Words
				if o.Type == option.Bool {
					words = []string{"true", "false"}
				} else if o.Asks == "rdma" {
					words = devices()
				}
				for _, w := range words {
					if strings.HasPrefix(w, value) {
						out = append(out, before+key+"="+w)
					}
				}
			}
		}
	}
	if valued {
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	return out, more
}

// withOlder is the paths of a command with the values of --verbs as options; all stands for paths
// that the command was not given.
func withOlder(paths, older, all []string) ([]string, error) {
	var options []string
	for _, o := range older {
		if key, value, valued := strings.Cut(o, "="); valued {
			o = key + "=" + option.Escape(value)
		}
		if o != "" {
			options = append(options, o)
		}
	}
	if options == nil {
		return paths, nil
	}
	if len(paths) == 0 {
		paths = all
	}
	for i, p := range paths {
		if name, there, asked := strings.Cut(p, "?"); name == verbs.Name {
			if asked {
				options = append([]string{there}, options...)
			}
			paths = slices.Clone(paths)
			paths[i] = verbs.Name + "?" + strings.Join(options, "&")
			return paths, nil
		}
	}
	return nil, &usageError{errors.New("--verbs shapes the path verbs, which --path leaves out: add it there, " +
		"or leave out --verbs")}
}

// pathDrivers are the drivers of a node. Who gives a path options wants it: then it is an error if
// this machine cannot have it.
func pathDrivers(paths, older []string, insecure bool) ([]setup.Driver, error) {
	paths, err := withOlder(paths, older, drivers.Names())
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		paths = nil
	}
	all, err := drivers.New(paths, insecure)
	if err != nil {
		return nil, &usageError{fmt.Errorf("--%w", err)} // --path "NAME": ...
	}
	for i := range paths {
		if strings.Contains(paths[i], "?") {
			if err := drivers.Probe(all[i]); err != nil {
				return nil, fmt.Errorf("--path %s: %w", all[i].Name(), err)
			}
		}
	}
	return all, nil
}
