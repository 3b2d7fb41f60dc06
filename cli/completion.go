package cli

import (
	"context"
	"strings"
	"time"
	"unicode"

	"github.com/penstock-io/penstock/share"
	"github.com/spf13/cobra"
)

// A shell that waits for its user's next key gets an answer soon, or none.
const (
	completionTime  = 700 * time.Millisecond
	completionNames = 500
)

// complete gives a flag its values.
func complete(c *cobra.Command, flag string, values ...string) {
	// The error says that there is no such flag; a test completes each.
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeFiles leaves an argument to the shell's own completion of files.
func completeFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// completeRemote completes ADDR/NAME, the argument number place, by asking the peer. Names that a
// command line would need to quote are left out, and whatever goes wrong gives no names.
func completeRemote(s streams, flags *clientFlags, place int) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		none := cobra.ShellCompDirectiveNoFileComp
		var t target
		var err error
		prefix := ""
		switch len(args) - place {
		case 0: // ADDR/NA...
			t, err = parseTarget(typed)
			if err != nil || !strings.HasSuffix(typed, "/"+t.name) || typed == t.addr {
				return nil, none | cobra.ShellCompDirectiveNoSpace
			}
			prefix = strings.TrimSuffix(typed, t.name)
		case 1: // ADDR NA...
			if t, err = parseTarget(args[place]); err != nil || t.name != "" {
				return nil, none
			}
			t.name = typed
		default:
			return nil, none
		}
		var out []string
		for _, n := range remoteNames(c, s, *flags, t) {
			out = append(out, prefix+n)
		}
		return out, none
	}
}

func remoteNames(c *cobra.Command, s streams, flags clientFlags, t target) (out []string) {
	ctx := c.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	flags.logLevel, flags.timeout = "off", completionTime
	client, err := flags.dial(ctx, newDisplay(s, displayFlags{quiet: true}), t.addr)
	if err != nil {
		return nil
	}
	defer client.close()
	entries, err := share.Names(ctx, client.conn(), t.name)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if plainWord(e.Name) && len(out) < completionNames {
			out = append(out, e.Name)
		}
	}
	return out
}

// plainWord reports whether a name is letters, digits and a few signs that no shell takes for
// something else.
func plainWord(s string) bool {
	for _, r := range s {
		if r >= 0x80 || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._-/+,@%=", r) {
			return false
		}
	}
	return s != ""
}
