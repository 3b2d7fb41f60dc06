package cli

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/host/tune"
	root "github.com/penstock-io/penstock/system"
	"github.com/spf13/cobra"
)

func newConfig(s streams) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check, explain, make and rewrite configuration files",
		Long: `A configuration file describes streams and transfers as YAML: in Penstock's format (penstock:) or in DAQIRI's (daqiri: cfg:). docs/config.md has
every key. A file named - is the standard input.`,
		Args: subcommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newConfigCheck(s), newConfigExplain(s), newConfigSchema(s), newConfigGenerate(s), newConfigMigrate(s))
	return c
}

// readConfig reads a file, or the standard input.
func readConfig(s streams, name string) (shown string, text []byte, err error) {
	const most = 16 << 20 // more than is read of a configuration, so that it can say so
	if name == "-" {
		text, err = io.ReadAll(io.LimitReader(s.in, most))
		return "standard input", text, err
	}
	f, err := os.Open(name)
	if err != nil {
		return name, nil, err
	}
	defer f.Close()
	text, err = io.ReadAll(io.LimitReader(f, most))
	return name, text, err
}

// problemsText is all that is to say about a file, and how much it is.
func problemsText(name string, problems config.Diagnostics, source []byte) string {
	out := problems.Text(source)
	if out != "" {
		out += "\n"
	}
	return fmt.Sprintf("%s%s: %s\n", out, name, problems.Summary())
}

func newConfigCheck(s streams) *cobra.Command {
	var here, strict, asJSON bool
	c := &cobra.Command{
		Use:   "check FILE...",
		Short: "Say everything that is wrong with configuration files",
		Long: `Reads configuration files and prints all there is to say about each, in the order of the file: where, what is wrong, what was expected.
An error is a mistake in the file. "needs" is something that the file may ask for and that is not here: a part that this program does not
have, a placeholder that is still to be filled in, and with --here all that penstock run would miss on this machine: devices, cores, memory,
rights, and what an engine does not do. With --here a "note" says where this machine does not do what the file asks for, such as a copy.

Nothing is opened and nothing is changed. Without --here the result is the same on every machine.

The exit status is 1 if there is an error, with --strict also for warnings, and 10 if --here finds that the file needs something.`,
		Example: `  penstock config check pair.yaml
  penstock config check --here pair.yaml
  penstock config check --json *.yaml`,
		Args: argsBetween(1, 1<<20, "a file"),
		RunE: func(c *cobra.Command, args []string) error {
			var o config.Options
			if here {
				h, err := readHost(c.Context())
				if err != nil {
					return err
				}
				o.Host = h
			}
			var failed error // the worst of all files
			for i, name := range args {
				name, text, err := readConfig(s, name)
				if err != nil {
					return err
				}
				cfg, problems := config.Load(name, text, o)
				if here && cfg != nil {
					if problems, err = withPlan(cfg, problems); err != nil {
						return err
					}
				}
				bad := true
				switch {
				case problems.Count(config.Error) > 0 || strict && problems.Count(config.Warning) > 0:
					failed = errReported
				case here && problems.Count(config.Needs) > 0:
					failed = cmp.Or(failed, errReportedUnfit)
				default:
					bad = false
				}
				if asJSON {
					if problems == nil {
						problems = config.Diagnostics{}
					}
					if err := printJSON(s.out, map[string]any{"file": name, "ok": !bad,
						"diagnostics": problems}); err != nil {
						return err
					}
					continue
				}
				out := problemsText(name, problems, text)
				if i > 0 {
					out = "\n" + out
				}
				if _, err := io.WriteString(s.out, printableText(out)); err != nil {
					return err
				}
			}
			return failed
		},
	}
	f := c.Flags()
	f.BoolVar(&here, "here", false, "also say what of it penstock run would miss on this machine")
	f.BoolVar(&strict, "strict", false, "a warning ends with status 1, too")
	f.BoolVar(&asJSON, "json", false, "print a JSON object for each file")
	return c
}

// withPlan is what config.Load said of a file, with what Open would miss here in place of what Load
// found missing of it, and with the notes of the plan: Load alone knows of benchmarks.
func withPlan(cfg *config.Config, problems config.Diagnostics) (config.Diagnostics, error) {
	plan, err := root.MakePlan(cfg, root.Options{})
	if err != nil {
		return nil, err
	}
	problems = slices.DeleteFunc(slices.Clone(problems), func(d config.Diagnostic) bool {
		return d.Severity == config.Needs && (d.Code != config.CodeHost || strings.HasPrefix(d.Path, "interfaces") ||
			strings.HasPrefix(d.Path, "memory_regions") || strings.HasPrefix(d.Path, "applications") ||
			d.Path == "master_core")
	})
	problems = append(append(problems, plan.Missing...), plan.Notes...)
	problems.Sort()
	return problems, nil
}

func newConfigExplain(s streams) *cobra.Command {
	return &cobra.Command{
		Use:   "explain FILE",
		Short: "Print the effective configuration: each value, where it came from, and the memory it takes",
		Long: `Prints the configuration as it will be used, in Penstock's format: each value with the line it was written in, "default", or what it was derived
from; then the memory of each region. What is printed is a configuration itself.`,
		Example: `  penstock config explain pair.yaml`,
		Args:    argsBetween(1, 1, "one file"),
		RunE: func(_ *cobra.Command, args []string) error {
			name, text, err := readConfig(s, args[0])
			if err != nil {
				return err
			}
			cfg, problems := config.Load(name, text, config.Options{})
			if cfg == nil {
				return problems.Err()
			}
			var b strings.Builder
			if err := cfg.Explain(&b); err != nil {
				return err
			}
			_, err = io.WriteString(s.out, printableText(b.String()))
			return err
		},
	}
}

func newConfigSchema(s streams) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of configuration files, for editors",
		Long: `Prints a JSON Schema (draft 2020-12). With the YAML language server, an editor completes and checks a file whose first line is
# yaml-language-server: $schema=FILE`,
		Example: `  penstock config schema > penstock.schema.json`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := s.out.Write(config.Schema())
			return err
		},
	}
}

func newConfigGenerate(s streams) *cobra.Command {
	var p config.Plan
	var engine, server, client, listen string
	c := &cobra.Command{
		Use:   "generate " + strings.Join(config.Kinds(), "|"),
		Short: "Make a configuration file for this machine",
		Long: `Prints a configuration that fits this machine, with comments: its network interfaces, their addresses and NUMA nodes, cores near them.

  receive   UDP packets, counted
  reorder   UDP packets of int16 samples, placed by their sequence numbers in fp32 batches that peers fetch
  gpu       the same as fp16 batches in memory of a GPU
  raw       frames from one network interface to another one
  socket    a server and a client over UDP or TCP
  transfer  a node for transfers of tensors and files

The same machine and flags give the same bytes. Nothing is opened and nothing is changed.`,
		Example: `  penstock config generate gpu --server 10.0.0.2 > rx.yaml
  penstock config generate raw --tx eth0 --rx eth1 --queues 2 > pair.yaml
  penstock config generate socket --transport tcp
  penstock config generate transfer --share /data`,
		Args:      argsBetween(1, 1, "what to make a file for: "+strings.Join(config.Kinds(), ", ")),
		ValidArgs: config.Kinds(),
		RunE: func(c *cobra.Command, args []string) error {
			p.Kind, p.Engine = args[0], config.Engine(engine)
			for _, a := range []struct {
				flag, text string
				to         *netip.Addr
			}{{"server", server, &p.Server}, {"client", client, &p.Client}, {"listen", listen, &p.Listen}} {
				if a.text == "" {
					continue
				}
				addr, err := netip.ParseAddr(a.text)
				if err != nil {
					return &usageError{fmt.Errorf("--%s %s: expected an IP address", a.flag, a.text)}
				}
				*a.to = addr
			}
			for _, x := range []struct{ flags, kinds string }{{"tx rx engine queues", "raw"},
				{"transport client", "socket"}, {"server", "socket receive reorder gpu"}, {"share listen", "transfer"},
				{"payload", "raw socket receive reorder gpu"}, {"port", "socket transfer receive reorder gpu"}} {
				for flag := range strings.FieldsSeq(x.flags) {
					if c.Flags().Changed(flag) && !strings.Contains(x.kinds, p.Kind) {
						return &usageError{fmt.Errorf("--%s is for %s, not for %s", flag,
							strings.ReplaceAll(x.kinds, " ", ", "), p.Kind)}
					}
				}
			}
			h, err := readHost(c.Context())
			if err != nil {
				return err
			}
			for _, name := range []string{p.Tx, p.Rx} {
				if name != "" && !slices.ContainsFunc(h.Interfaces, func(x config.HostInterface) bool {
					return x.Name == name
				}) {
					return &worded{fmt.Sprintf("this machine has no network interface %q", name), tune.ErrInterface}
				}
			}
			text, err := config.Generate(p, h)
			if err != nil {
				return err
			}
			_, err = io.WriteString(s.out, printableText(string(text)))
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&p.Tx, "tx", "", "network `IF` that sends; default: the first that is up")
	f.StringVar(&p.Rx, "rx", "", "network `IF` that receives; default: the next one")
	f.StringVar(&engine, "engine", "", "xdp or afpacket (default xdp)")
	f.IntVar(&p.Queues, "queues", 0, "queues in each direction (default 1)")
	f.IntVar(&p.Payload, "payload", 0,
		"bytes of payload of a packet, without a sequence number (default: what the MTU has room for; sockets: 1024)")
	f.StringVar(&p.Transport, "transport", "", "udp or tcp (default udp)")
	f.StringVar(&server, "server", "", "`ADDR` of the server or receiver (default 127.0.0.1)")
	f.StringVar(&client, "client", "", "`ADDR` of the client (default that of the server)")
	f.IntVar(&p.Port, "port", 0, "port of the server or receiver (default 5000), or of the node (default 7070)")
	f.StringVar(&p.Share, "share", "", "file or `DIR` that the node shares")
	f.StringVar(&listen, "listen", "", "`ADDR` that the node is reached at (default 127.0.0.1)")
	complete(c, "engine", config.RawEngines()...)
	complete(c, "transport", "udp", "tcp")
	_ = c.MarkFlagDirname("share") // the flag exists
	return c
}

func newConfigMigrate(s streams) *cobra.Command {
	return &cobra.Command{
		Use:   "migrate FILE",
		Short: "Rewrite a configuration of DAQIRI's in Penstock's format",
		Long: `Prints a configuration file in Penstock's format. Comments and the order of keys stay; blank lines go. What has no effect here is left out. The
result is read again and compared: it says the same, or nothing is printed. Keys at the top of the file that belong to your own programs
get the prefix x-.`,
		Example: `  penstock config migrate daqiri.yaml > pair.yaml`,
		Args:    argsBetween(1, 1, "one file"),
		RunE: func(_ *cobra.Command, args []string) error {
			name, text, err := readConfig(s, args[0])
			if err != nil {
				return err
			}
			out, problems, err := config.Migrate(name, text)
			if err != nil {
				return err
			}
			for _, p := range problems {
				if p.Code == config.CodeNoEffect || p.Code == config.CodePlaceholder {
					if _, err := io.WriteString(s.err, printableText(p.String()+"\n")); err != nil {
						return err
					}
				}
			}
			_, err = s.out.Write(out)
			return err
		},
	}
}
