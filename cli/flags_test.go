package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// fits fails where a text has lines of more than 80 columns that could be broken.
func fits(t *testing.T, what, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if columns(line) > 80 && strings.Contains(strings.TrimSpace(line), " ") {
			t.Errorf("%s: a line of %d columns: %s", what, columns(line), line)
		}
	}
}

// every calls f for each command, hidden ones too.
func every(f func(c *cobra.Command)) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		f(c)
		for _, s := range c.Commands() {
			walk(s)
		}
	}
	walk(New(strings.NewReader(""), io.Discard, io.Discard))
}

// One name is one kind of flag with one letter in all commands, and a variable gives flags of one
// kind.
func TestFlagsMeanOneThing(t *testing.T) {
	kinds := map[string]string{"json": "bool", "output": "string", "quiet": "bool", "gpu-runtime": "string",
		"identity": "string"}
	letters := map[string]string{"quiet": "q", "output": "o", "force": "", "long": "l"}
	ofVariable := map[string]string{}
	// they print files
	noJSON := []string{"penstock config explain", "penstock config generate", "penstock config migrate",
		"penstock config schema",
		"penstock man", "penstock topology", // texts and a picture
		"penstock agent",   // nothing
		"penstock capture"} // packets; what it says of them goes to the standard error
	every(func(c *cobra.Command) {
		leaf := c.Runnable() && !c.HasSubCommands() && !c.Hidden && c.Name() != "help" &&
			c.Parent().Name() != "completion"
		if leaf && c.Flags().Lookup("json") == nil != slices.Contains(noJSON, c.CommandPath()) {
			t.Errorf("%s: does it have --json? It prints what programs read, or is in the list of this test",
				c.CommandPath())
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			kind := f.Value.Type()
			if want := kinds[f.Name]; want != "" && kind != want {
				t.Errorf("%s --%s is a %s, expected %s", c.CommandPath(), f.Name, kind, want)
			}
			if want := letters[f.Name]; want != "" && f.Shorthand != want {
				t.Errorf("%s --%s has the letter %q, expected %q", c.CommandPath(), f.Name, f.Shorthand, want)
			}
			if slices.Contains([]string{"device", "runtime", "sizes"}, f.Name) {
				t.Errorf("%s --%s: expected --gpu, --gpu-runtime, --size", c.CommandPath(), f.Name)
			}
			if v := variableOf(f); v != "" {
				if was, ok := ofVariable[v]; ok && was != kind {
					t.Errorf("%s is a %s and, for %s, a %s", v, was, c.CommandPath(), kind)
				}
				ofVariable[v] = kind
				if !f.Hidden && !strings.Contains(f.Usage, v) {
					t.Errorf("the help of %s --%s does not name %s", c.CommandPath(), f.Name, v)
				}
			}
		})
	})
	if len(ofVariable) < 12 {
		t.Errorf("%d variables", len(ofVariable))
	}
	help, _ := run(t, 0, "", "help", "environment")
	for v := range ofVariable {
		if !strings.Contains(help, "\n  "+v+"\n") {
			t.Errorf("help environment has no %s:\n%s", v, help)
		}
	}
	run(t, 0, "A variable gives a flag", "environment")
}

// A variable gives a flag, a flag that is given wins, and an error in a variable has its name.
func TestEnvironment(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), []byte("a"))
	_, addr := serve(t, dir)
	for _, x := range []struct {
		env    string
		args   string
		status int
		want   string
	}{
		{"PENSTOCK_PATH=tcp", "ping ADDR --count 1", 0, "path         tcp"},
		{"PENSTOCK_PATH=tcp", "ping ADDR --count 1 --path shm", 0, "path         shm"},
		{"PENSTOCK_PATH=", "ping ADDR --count 1", 0, "path         shm"},
		{"PENSTOCK_PATH=ring", "ls ADDR", 2, `"ring"`},
		{"PENSTOCK_TIMEOUT=soon", "ls ADDR", 2, "PENSTOCK_TIMEOUT=soon: expected a time such as"},
		{"PENSTOCK_TIMEOUT=soon", "ls ADDR --timeout 1m", 0, "a\n"},
		{"PENSTOCK_TIMEOUT=-1s", "ls ADDR", 2, "--timeout -1s"},
		{"PENSTOCK_INSECURE=maybe", "ls ADDR", 2, "PENSTOCK_INSECURE=maybe: expected true or false"},
		{"PENSTOCK_IDENITY=x", "ls ADDR", 2, "PENSTOCK_IDENITY: did you mean PENSTOCK_IDENTITY?"},
		// what Kubernetes makes for a service called penstock
		{"PENSTOCK_PORT=tcp://10.0.0.1:7070", "ls ADDR", 0, "a\n"},
		{"PENSTOCK_SERVICE_HOST=10.0.0.1", "ls ADDR", 0, "a\n"},       // likewise
		{"PENSTOCK_PORT_7070_TCP_ADDR=10.0.0.1", "ls ADDR", 0, "a\n"}, // likewise
		{"PENSTOCK_IDENTITY=/nowhere/at/all", "ls ADDR", exitNotPermitted, "/nowhere/at/all"},
		{"PENSTOCK_IDENTITY=/nowhere/at/all", "pair show", exitNotPermitted, "/nowhere/at/all"},
		{"PENSTOCK_IDENTITY=none", "pair show", 2, "expected the directory of an identity"},
		{"PENSTOCK_GPU=x", "doctor --list", 0, ""}, // whose --gpu is another thing
		{"PENSTOCK_GPU=9", "demo --small --memory device --gpu-runtime host", exitUnfit, "no such device"},
		{"PENSTOCK_QUIET=1", "bench ring --quick --json", 0, `"rows"`},
		{"PENSTOCK_TIMEOUT=soon", "version", 0, "penstock "}, // which has no such flag
	} {
		args := strings.Fields(strings.ReplaceAll(x.args, "ADDR", addr))
		spec := program(args...)
		spec.Env = append(spec.Env, x.env)
		p := proc.Start(t, spec)
		e, err := p.Wait(limit(t))
		if err != nil || e.Code != x.status || !strings.Contains(p.Output(), x.want) {
			t.Errorf("%s penstock %s: %v, %v, expected status %d and %q:\n%s", x.env, x.args, e, err, x.status, x.want,
				p.Output())
		}
		if strings.HasPrefix(x.env, "PENSTOCK_QUIET") && !strings.HasPrefix(p.Output(), "{") {
			t.Errorf("%s: progress is shown:\n%s", x.env, p.Output())
		}
	}
}

// A typing error is answered with what was probably meant.
func TestSuggestions(t *testing.T) {
	for _, x := range []struct{ args, want string }{
		{"sreve", `unknown command "sreve" for penstock: did you mean "serve"?`},
		{"bench trasnfer", `unknown command "trasnfer" for penstock bench: did you mean "transfer"?`},
		{"tune nics", `for penstock tune: did you mean "nic"?`},
		{"config xyzzy", `for penstock config: expected check, explain, generate, migrate, schema`},
		{"demo-reciever", `unknown command "demo-reciever" for penstock`},
		{"bench gpu --sizes 1KiB", "penstock bench gpu has no flag --sizes: did you mean --size?"},
		{"bench ring --jsn", "did you mean --json?"},
		{"bench ring --json r.json", `unexpected argument "r.json": --json is a switch; --output FILE writes a file`},
		{"bench ring --json=-", "--json -: expected true or false: --json is a switch"},
		{"bench stream x.yaml --json r.json", "got 2 arguments: --json is a switch; --output FILE writes a file"},
		{"get -z", "penstock get has no flag -z"},
		{"get x --timeout soon", "--timeout soon: expected a time such as 500ms, 10s or 2m"},
		{"demo --repeat many", "--repeat many: expected a whole number"},
		{"bench gpu --total 3parsecs", "--total 3parsecs: "},
	} {
		out, errOut := run(t, exitUsage, x.want, strings.Fields(x.args)...)
		if out != "" || strings.Contains(errOut, "strconv") || strings.Contains(errOut, `\x`) ||
			strings.Contains(errOut, "penstock: penstock:") {
			t.Errorf("%s: %s%s", x.args, out, errOut)
		}
	}
	if _, errOut := run(t, exitUsage, "", "demo-reciever"); strings.Contains(errOut, "receiver\"?") {
		t.Errorf("a hidden command is suggested: %s", errOut)
	}
}

// --version is what version prints.
func TestVersionFlag(t *testing.T) {
	flag, _ := run(t, 0, "go1.", "--version")
	run(t, 0, "\n  \"go\": \"go1.", "version", "--json")
	if command, _ := run(t, 0, "", "version"); flag != command || strings.Count(flag, "\n") != 1 {
		t.Errorf("%q and %q", flag, command)
	}
}

// Each command that a person runs keeps to the table of statuses: a line of this test for each.
func TestEveryCommandKeepsTheStatuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad := write(t, filepath.Join(dir, "bad.yaml"), []byte("penstock:\n  version: 1\n  mastercore: x\n"))
	absent := write(t, filepath.Join(dir, "absent.yaml"), []byte(strings.Replace(goodConfig, "    interfaces:",
		"    applications: [{name: a, kind: count, interface: p, queue: 0}]\n    interfaces:", 1)))
	there := write(t, filepath.Join(dir, "there"), []byte("x"))
	empty := filepath.Join(dir, "identity")
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	const noPeer, noFile, noLib = "127.0.0.1:1 --retry 0", "/nowhere/at/all",
		" --verbs library=/nowhere/libibverbs.so.1"
	cases := map[string][]string{
		"demo":           {"3 --file " + noFile, "10 --memory device --gpu-runtime host --gpu 3"},
		"run":            {"3 " + noFile, "1 " + bad, "10 " + absent, "10 --dry-run " + absent},
		"bench compare":  {"3 " + noFile + " " + noFile},
		"bench fairness": {"3 --output " + noFile + "/x", "2 --small x"},
		"bench gpu":      {"10 --gpu-runtime host --gpu 3", "3 --output " + noFile + "/x"},
		"bench feed":     {"10 --gpu-runtime host --gpu 3", "3 --output " + noFile + "/x"},
		"bench mem":      {"3 --output " + noFile + "/x"},
		"bench ring":     {"3 --output " + noFile + "/x"},
		"bench vec":      {"3 --output " + noFile + "/x"},
		"bench stream":   {"3 " + noFile, "1 " + bad, "3 --output " + noFile + "/x"},
		"bench transfer": {"3 --output " + noFile + "/x", "10 --quick --idle-wait 0" + noLib,
			"10 --quick --memory device --gpu-runtime host --gpu 3", "2 --size 1"},
		"pair": {"2 ", "3 127.0.0.1:1 --dir " + empty + " --code " + noFile,
			"2 127.0.0.1:1 --dir " + empty + " --code " + there},
		"pair show": {"4 --dir " + empty}, "pair list": {"4 --dir " + empty}, "pair renew": {"4 --dir " + empty},
		"pair key":    {"0 --dir " + filepath.Join(dir, "k")},
		"pair export": {"4 b --dir " + empty + " -o " + filepath.Join(dir, "b.pair")},
		"pair import": {"3 " + noFile}, "pair trust": {"3 " + noFile}, "pair distrust": {"2 "},
		"pair allow": {"4 b read --dir " + empty}, "pair deny": {"4 b --dir " + empty},
		"pair init": {"2 --name B"}, "pair undeny": {"4 b --dir " + empty},
		"capture": {"10 absent0", "2 lo --engine xdp"},
		"serve":   {"3 " + noFile, "10 " + dir + noLib, "4 " + dir + " --listen tcp://192.0.2.1:7070"},
		"ls":      {"5 " + noPeer, "10 " + noPeer + noLib}, "get": {"5 " + noPeer, "10 " + noPeer + noLib},
		"put": {"5 " + there + " " + noPeer, "3 " + noFile + " " + noPeer},
		"rm": {"5 127.0.0.1:1/x --retry 0", "2 " + noPeer, "2 127.0.0.1:1/", "2 -r 127.0.0.1:1/",
			"10 127.0.0.1:1/x" + noLib},
		"mirror": {"5 127.0.0.1:1 " + dir + " --retry 0"}, "status": {"5 " + noPeer},
		"ping":           {"5 " + noPeer, "10 " + noPeer + noLib},
		"config check":   {"3 " + noFile, "1 " + bad, "10 --here " + absent, "1 --here " + absent + " " + bad},
		"config explain": {"3 " + noFile, "1 " + bad}, "config migrate": {"3 " + noFile, "1 " + bad},
		"config schema": {"0 "}, "config generate": {"2 everything", "3 raw --tx absent0", "2 raw --queues -1"},
		"doctor":      {"3 " + noFile, "1 " + bad, "10 " + absent, "8 --record " + there, "3 --from " + noFile},
		"doctor rdma": {"3 --from " + noFile, "8 --record " + there},
		"topology":    {"3 --from " + noFile}, "devices": {"3 --from " + noFile},
		"tune nic": {"3 absent0"}, "tune host": {"2 --sysctl x"}, "tune driver": {"3 absent0 --driver vfio-pci"},
		"replay": {"3 " + noFile + " sim://a", "1 " + bad + " sim://a", "2 " + bad + " sim://a --pps -1"},
		"agent":  {"2 ", "2 --fd 99", "3 --socket " + noFile},
		"man":    {"2 nothing"}, "version": {"0 "},
	}
	every(func(c *cobra.Command) {
		name := strings.TrimPrefix(c.CommandPath(), "penstock ")
		if c.Hidden || !c.Runnable() || !c.HasParent() || c.HasParent() && c.Parent().Name() == "completion" ||
			name == "help" || name == "completion" {
			return
		}
		lines := cases[name]
		if c.HasSubCommands() && lines == nil { // it prints its help
			return
		}
		delete(cases, name)
		if lines == nil {
			t.Errorf("penstock %s: no line says with which statuses it ends", name)
		}
		for _, line := range append(lines, "2 --no-such-flag") {
			var want int
			rest, _ := strings.CutPrefix(line, strings.Fields(line)[0])
			fmt.Sscan(line, &want)
			args := append(strings.Fields(name), strings.Fields(rest)...)
			out, errOut, got := penstock(t, args...)
			if got != want || strings.Contains(errOut, "penstock: penstock:") {
				t.Errorf("penstock %s: status %d, expected %d:\n%s%s", strings.Join(args, " "), got, want, out, errOut)
			}
		}
	})
	for name := range cases {
		t.Errorf("there is no command %q", name)
	}
}
