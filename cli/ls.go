package cli

import (
	"bufio"
	"fmt"
	"io"

	"github.com/penstock-io/penstock/share"
	"github.com/spf13/cobra"
)

func newLs(s streams) *cobra.Command {
	var flags clientFlags
	var long, asJSON, leftOut bool
	c := &cobra.Command{
		Use:   "ls ADDR [PREFIX]",
		Short: "List what a peer serves",
		Long: `Lists the names that the peer at ADDR serves and that begin with PREFIX, which may also follow ADDR after a slash. On a terminal
and with -l also their sizes, and of tensors the element type and the shape. Names are shown with escapes for whatever a
terminal would not show as it is.

ADDR is tcp://HOST[:PORT] (port 7070 without one), HOST:PORT or unix://PATH, as penstock serve prints it.`,
		Example: `  penstock ls 127.0.0.1:7070
  penstock ls 127.0.0.1:7070/layers. -l
  penstock ls unix:///run/penstock.sock --json | jq -r '.[].name'`,
		Args: argsBetween(1, 2, "an address and at most one prefix"),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := parseTargetArgs(args)
			if err != nil {
				return err
			}
			d := newDisplay(s, displayFlags{})
			client, err := flags.dial(c.Context(), d, t.addr)
			if err != nil {
				return err
			}
			defer client.close()
			if leftOut {
				list, total, err := share.LeftOut(c.Context(), client.conn(), t.name)
				if err != nil {
					return client.inWords(err)
				}
				return listLeftOut(s.out, asJSON, list, total)
			}
			list := share.Names
			if asJSON { // with tags
				list = share.List
			}
			entries, err := list(c.Context(), client.conn(), t.name)
			if err != nil {
				return client.inWords(err)
			}
			if asJSON {
				return listJSON(s.out, entries)
			}
			return listText(s.out, entries, long || terminalWidth(s.out) > 0)
		},
		ValidArgsFunction: completeRemote(s, &flags, 0),
	}
	flags.add(c)
	c.Flags().BoolVarP(&long, "long", "l", false,
		"sizes, element types and shapes too, also when the output is no terminal")
	c.Flags().BoolVar(&leftOut, "left-out", false, "list what the peer has and does not serve instead, and why")
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON array (penstock help json)")
	return c
}

// listedEntry is an element of ls --json.
type listedEntry struct {
	Name  string  `json:"name"`
	Bytes uint64  `json:"bytes"`
	DType string  `json:"dtype,omitempty"`
	Shape []int64 `json:"shape,omitempty"`
	Tag   string  `json:"tag,omitempty"`
}

func listJSON(w io.Writer, entries []share.Entry) error {
	out := make([]listedEntry, len(entries))
	for i, e := range entries {
		out[i] = listedEntry{Name: e.Name, Bytes: e.Size}
		if e.Tensor != nil {
			out[i].DType, out[i].Shape = e.Tensor.DType.String(), e.Tensor.Shape
		}
		if e.Tag != (share.Tag{}) {
			out[i].Tag = e.Tag.String()
		}
	}
	return printJSON(w, out)
}

// listLeftOut prints what a peer does not serve.
func listLeftOut(w io.Writer, asJSON bool, list []share.Skipped, total int) error {
	if asJSON {
		return printJSON(w, append([]share.Skipped{}, list...))
	}
	for _, s := range list {
		if _, err := fmt.Fprintf(w, "%s: %s\n", share.Printable(s.Path), escapeControls(s.Reason)); err != nil {
			return err
		}
	}
	if more := total - len(list); more > 0 {
		fmt.Fprintf(w, "%d more\n", more)
	}
	return nil
}

// listText prints one name per line; long is with columns for the rest, the name last, for it may
// be of any length.
func listText(w io.Writer, entries []share.Entry, long bool) error {
	if !long {
		b := bufio.NewWriter(w)
		for _, e := range entries {
			fmt.Fprintln(b, share.Printable(e.Name))
		}
		return b.Flush()
	}
	t := list{width: widthOf(w)}
	for _, e := range entries {
		kind := "-"
		if e.Tensor != nil {
			kind = fmt.Sprintf("%v%v", e.Tensor.DType, e.Tensor.Shape)
		}
		size := formatBytes(e.Size)
		t.add(fmt.Sprintf("%9s", size), share.Printable(kind), share.Printable(e.Name))
	}
	return t.print(w)
}
