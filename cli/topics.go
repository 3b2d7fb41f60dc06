package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// A topic is a page of help without a command.
func newExitStatus() *cobra.Command {
	var b strings.Builder
	b.WriteString("The exit statuses of all commands. They keep their meaning; later versions may add some.\n\n")
	for _, x := range exitStatuses {
		fmt.Fprintf(&b, "  %3d  %s\n", x.status, strings.TrimLeft(wrapped(x.words, 7, helpWidth), " "))
	}
	b.WriteString(`
A second Ctrl-C ends a command at once. Files that were not complete stay under their name with .partial, as far as they were
checked, in whole parts of 4 MiB; the same command goes on from there.`)
	return &cobra.Command{Use: "exit-status", Aliases: []string{"exit-codes"}, Short: "Help on exit statuses",
		Long: b.String()}
}

// newEnvironment is the page about variables, those of the commands that are below root by now.
func newEnvironment(root *cobra.Command) *cobra.Command {
	return &cobra.Command{Use: "environment", Short: "Help on environment variables",
		Long: `A variable gives a flag to each command that has it, unless the command line gives the flag. An empty variable counts as none. A value that
the flag does not take, and a name that is almost one of these, end the command with status 2. No variable holds a secret: PENSTOCK_IDENTITY
names the directory of keys, for --identity and for --dir of penstock pair.

  ` + strings.Join(variables(root), "\n  ") + `

NO_COLOR turns colours off, and TERM=dumb the line that is drawn again and again.`}
}

func newJSONHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "json",
		Short: "Help on the output of --json",
		Long: `serve, get, put, mirror and rm with --json print one JSON object per line on the standard output. The key "event" says what it is; keys
that do not apply are left out, and later versions may add keys and events. Names are as the peer sent them, with escapes
of JSON for what is not printable: make them safe before you show them.

  event     keys
  start     name, file, bytes, resumed_at: a transfer begins, or goes on at this offset
  progress  name, done, bytes, bytes_per_second, eta_seconds, path: at most once per second; done and bytes count bytes
  lost      name, attempt, text: the connection was lost, or something else failed, and it is tried again
  warning   text
  file      action, name, file, bytes, link (the text of a symbolic link), error: what mirror did: get, keep, remove, fail; with
            --dry-run: would; what put of several files did: put, keep, skip (left out), fail; what rm did: remove, fail
  left out  name, text: what the peer of mirror has and does not serve, or serve itself, and why; the first ten of them
  result    ok, status (the exit status), error, seconds, and of
              get     name, file, bytes, resumed_at, bytes_per_second, path, sha256
              put     name, file, bytes, resumed_at, bytes_per_second, path, sha256; of several files name, file (of one directory),
                      sent, kept, failed, left_out, bytes
              mirror  fetched, kept, removed, failed, left_out, bytes
              rm      name (of one file), removed, failed, bytes
            the last line of get, put, mirror and rm; path is control where a small file came by the control connection
  serving   addresses, root, files, bytes, writable, encrypted, metrics: serve can be reached
  peer      peer, action (come, go), text
  served    peer, name, action (get, put, remove), bytes, resumed_at, seconds, path, error: a transfer of a peer ended, or it removed
            a file; bytes are those in place, of a get as the peer says, or of the removed file
  ended     text: serve ended in order

run --json prints one object per line, too:

  event     keys
  plan      ok, file, regions, interfaces, pollers, node, missing, applications: what will be opened; the only one of --dry-run
  problem   text, diagnostics: what is wrong with the file, or not here; see config check --json
  warning   text, diagnostics
  started   addresses: everything is open
  sample    seconds, interval, cpu, interfaces, drops, queues, pools, rules, applications, node: counts since the start, and rates
            (keys that end with _per_second) in the interval
  link      interface, change: the link of an interface is down or up, or the interface was lost or reopened
  reload    ok, changes, error, diagnostics: flows were put in force, or nothing was changed
  message   text
  ended     the keys of sample, with the last and exact counts, and ok, status, error: the last line

ls --json prints one array of objects with name, bytes, dtype, shape and tag; with --left-out, with path and reason. Every other command with --json prints one document.

ping --json prints addr, peer, same_host, security, connect_seconds, control (count, p50_seconds, p99_seconds, max_seconds: round trips
of the control connection), and path (name, carrier, why, security, open_seconds, notification as control, user_copies, kernel_copies,
setup, candidates with path, usable, reason, latency_seconds and bytes_per_second) or no_path, the reason.`,
	}
}
