package laws

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/penstock-io/penstock"

// layers are the layers of docs/packages.md: a package imports packages of lower layers, and those
// listed before it in its own. Packages under internal/ that any layer may use are in the base.
var layers = []struct {
	name     string
	packages []string
}{
	{"base", []string{
		"internal/bucket", "internal/handles", "internal/input", "internal/option", "internal/invariants",
		"internal/word",
		"internal/netlink",
		"internal/sys", "internal/budget", "internal/dl", "internal/ocl", "internal/ibv", "internal/ibv/cm",
		"internal/cuda", "internal/cuda/cudatest", "internal/cdpdk", "internal/nvml", "internal/libpcap",
		"internal/filewatch",
		"internal/web", "internal/s3/place", "internal/s3", "internal/xsk", "internal/peers", "internal/lab/testenv",
		"internal/lab/testenv/scope", "internal/lab/testenv/proc", "internal/lab/testenv/netns",
		"internal/lab/testenv/guest", "internal/lab/testenv/peers",
		"internal/lab/testenv/s3", "internal/lab/testenv/fake/verbs", "internal/lab/testenv/fake/cuda",
		"internal/ethtool", "host",
	}},
	{"counters, rings, vectors", []string{
		"mem/ring", "metrics", "metrics/prom", "mem/vec",
	}},
	{"memory and accelerators", []string{
		"mem", "internal/procmem", "internal/ibvmem", "internal/ibvmem/cardtest", "gpu/driver", "gpu",
		"internal/kernels", "gpu/gputest", "gpu/host", "gpu/opencl", "gpu/cuda", "gpu/runtimes",
		"gpu/gpumem", "gpu/gpumem/gpumemtest",
	}},
	{"packets and tensors", []string{
		"packet/burst", "packet", "packet/pcap", "packet/pcapread", "packet/filter", "packet/flow",
		"packet/flow/flowtest", "tensor",
		"tensor/synth",
		"tensor/safetensors", "tensor/npy", "tensor/convert", "internal/accel",
	}},
	{"engines, stages, paths", []string{
		"engine", "internal/rdmadev", "engine/enginetest", "stage/checksum", "stage/reorder", "engine/pace",
		"engine/neigh", "engine/conns", "engine/netif", "engine/null", "engine/sim", "engine/socket",
		"engine/afpacket", "engine/xdp/ntuple", "engine/xdp/card", "engine/xdp/prog", "engine/xdp",
		"engine/rdma", "engine/rawqp", "engine/dpdk/rteflow", "engine/dpdk", "engine/drivers",
		"engine/reopen", "engine/bounce", "stage/feed", "transfer/path", "transfer/path/setup",
		"transfer/path/pathtest", "transfer/path/seal", "transfer/path/shm", "transfer/path/tcp",
		"transfer/path/verbs", "transfer/path/drivers", "internal/lab/testenv/fault",
	}},
	{"nodes, files, consumers", []string{
		"transfer/control", "transfer/identity", "transfer/sched", "transfer/state", "transfer/bounce",
		"transfer/observe", "transfer/account", "transfer/loop", "transfer/fence", "transfer/digest", "transfer/inbox",
		"transfer/takeover", "transfer/names", "transfer/address", "transfer/pool", "transfer", "transfer/job", "share",
		"stage/record", "stage/replay", "stage/app", "config",
	}},
	{"systems", []string{
		"system", "", // "" is the root, which has only its documentation
	}},
	{"bindings, the host, benchmarks", []string{
		"bindings/abi", "bindings/agent", "host/cards", "bench/paired", "bench", "bench/stream",
		"bench/sections", "bench/device", "bench/feed", "internal/lab/soak", "host/doctor", "host/tune",
	}},
	{"programs", []string{
		"internal/laws", "internal/laws/wrap", "cli", "cmd/penstock", "bindings/c", "examples/count",
		"examples/batches", "examples/split", "examples/reorder", "examples/echo", "examples/feed", "examples/fanout",
		"examples/putget", "examples/kvcache", "examples/checkpoint", "internal/laws", "internal/lab",
		"internal/lab/gpucard",
	}},
}

// apart lists packages of one layer that must not know each other although the order of the table
// would allow it.
var apart = map[string][]string{
	"transfer/path/tcp":   {"transfer/path/shm"},
	"transfer/path/verbs": {"transfer/path/shm", "transfer/path/tcp", "transfer/path/seal"},
	"engine/socket":       {"engine/sim"},
	"engine/afpacket":     {"engine/sim", "engine/socket"},
	"engine/xdp":          {"engine/sim", "engine/socket", "engine/afpacket"},
	"engine/rdma":         {"engine/sim", "engine/socket", "engine/afpacket", "engine/xdp"},
	"engine/rawqp":        {"engine/sim", "engine/socket", "engine/afpacket", "engine/xdp", "engine/rdma"},
	"engine/dpdk": {"engine/sim", "engine/socket", "engine/afpacket", "engine/xdp", "engine/rdma",
		"engine/rawqp"},
}

// restricted says which packages alone may import a package from outside the module (tests are free
// to).
var restricted = map[string][]string{
	"golang.org/x/sys/unix":  {"internal/sys"},
	"syscall":                {"internal/sys", "internal/cdpdk"},
	"github.com/spf13/cobra": {"cli"},
	"github.com/spf13/pflag": {"cli"},

	"github.com/cilium/ebpf":      {"engine/xdp/prog"},
	"github.com/cilium/ebpf/asm":  {"engine/xdp/prog"},
	"github.com/cilium/ebpf/btf":  {"engine/xdp/prog"},
	"github.com/cilium/ebpf/link": {"engine/xdp/prog"},

	"go.yaml.in/yaml/v3": {"config"},

	"github.com/ebitengine/purego": {"internal/dl"},

	"github.com/minio/minio-go/v7":                 {"internal/s3"},
	"github.com/minio/minio-go/v7/pkg/credentials": {"internal/s3"},
	"github.com/minio/minio-go/v7/pkg/s3utils":     {"internal/s3/place"},

	"github.com/prometheus/client_golang/prometheus":          {"metrics/prom"},
	"github.com/prometheus/client_golang/prometheus/promhttp": {"metrics/prom"},

	"github.com/gopacket/gopacket":        {"packet/pcapread"},
	"github.com/gopacket/gopacket/layers": {"packet/pcapread"},
	"github.com/gopacket/gopacket/pcapgo": {"packet/pcapread"},
	"gonum.org/v1/gonum/blas":             {"bench/stream"},
	"gonum.org/v1/gonum/blas/gonum":       {"bench/stream"},
	"gonum.org/v1/gonum/dsp/fourier":      {"bench/stream"},

	"C":      {"internal/cdpdk", "bindings/c"}, // with the tag dpdk; the library for C
	"plugin": {},
}

// maxLines is the length a file should not exceed, and coreLines that of a source of transfers and
// their paths.
const (
	maxLines  = 720
	coreLines = 500
)

type source struct {
	rel, pkg string // path of the file and of its package below the root of the repository
	test     bool
	file     *ast.File
	fset     *token.FileSet
	lines    int
	text     string
}

var (
	once   sync.Once
	loaded []source
)

// load is all Go files of the repository.
func load(t *testing.T) []source {
	t.Helper()
	once.Do(func() { loaded = loadAll(t) })
	if len(loaded) == 0 {
		t.Fatal("the first test could not load the sources")
	}
	return loaded
}

func loadAll(t *testing.T) []source {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var out []source
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		if d.IsDir() {
			if name := d.Name(); rel != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "tools" ||
				name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, p, b, parser.ParseComments)
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(filepath.Dir(rel))
		if pkg == "." {
			pkg = ""
		}
		out = append(out, source{filepath.ToSlash(rel), pkg, strings.HasSuffix(rel, "_test.go"), f, fset,
			strings.Count(string(b), "\n"), string(b)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("found only %d Go files below %s", len(out), root)
	}
	return out
}

func imports(s source) []string {
	var out []string
	for _, i := range s.file.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		out = append(out, p)
	}
	return out
}

// rank is the position of a package: its layer, and its place there.
func rank(pkg string) (layer, place int, ok bool) {
	for n, l := range layers {
		if i := slices.Index(l.packages, pkg); i >= 0 {
			return n, i, true
		}
	}
	return 0, 0, false
}

func TestEveryPackageHasALayer(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range load(t) {
		seen[s.pkg] = true
		if _, _, ok := rank(s.pkg); !ok {
			t.Errorf("%s: package %q is in no layer: add it to layers in internal/laws, and run make generate", s.rel,
				s.pkg)
		}
	}
	for _, l := range layers {
		for _, n := range l.packages {
			if !seen[n] {
				t.Errorf("layers has %q, which has no Go file", n)
			}
		}
	}
}

func TestImportsGoDown(t *testing.T) {
	for _, s := range load(t) {
		if s.test {
			continue
		}
		f, p, ok := rank(s.pkg)
		if !ok {
			continue
		}
		for _, i := range imports(s) {
			if i != module && !strings.HasPrefix(i, module+"/") {
				continue
			}
			target := strings.TrimPrefix(strings.TrimPrefix(i, module), "/")
			tf, tp, ok := rank(target)
			if !ok || tf > f || tf == f && tp >= p || slices.Contains(apart[s.pkg], target) {
				t.Errorf("%s: imports %s, which is not below it", s.rel, i)
			}
		}
	}
}

// A program has its engines from the table of engine/drivers: a new engine is there without another
// change. Tests, and the packages of an engine itself, may import it.
func TestEnginesByTable(t *testing.T) {
	engines := map[string]bool{}
	all := load(t)
	for _, s := range all {
		if s.pkg == "engine/drivers" && !s.test {
			for _, i := range imports(s) {
				if p := strings.TrimPrefix(i, module+"/"); strings.HasPrefix(p, "engine/") {
					engines[p] = true
				}
			}
		}
	}
	if len(engines) < 5 {
		t.Fatalf("engine/drivers imports %v: this test does not see its table", engines)
	}
	for _, s := range all {
		for _, i := range imports(s) {
			p := strings.TrimPrefix(i, module+"/")
			of := p
			for !engines[of] && of != "." {
				of = path.Dir(of)
			}
			switch {
			case s.test || of == "." || s.pkg == "engine/drivers" || s.pkg == of || strings.HasPrefix(s.pkg, of+"/"):
			default:
				t.Errorf("%s: imports the engine %s: take it from engine/drivers, or ask an interface of package engine", s.rel, p)
			}
		}
	}
}

// forTests are packages that tests alone may link, with all below them.
var forTests = []string{"internal/lab/testenv", "internal/lab", "engine/enginetest", "transfer/path/pathtest",
	"gpu/gputest", "gpu/gpumem/gpumemtest", "packet/flow/flowtest", "internal/cuda/cudatest",
	"internal/ibvmem/cardtest"}

// The shipped program links no package for tests and embeds no C.
func TestProgramLinksNothingOfTheLab(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}}{{range .EmbedFiles}} {{.}}{{end}}",
		"./cmd/penstock")
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: expected the Go toolchain that runs this test", err)
	}
	linked := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		pkg := strings.TrimPrefix(f[0], module+"/")
		linked[pkg] = true
		if pkg == "testing" || slices.ContainsFunc(forTests, func(of string) bool {
			return pkg == of || strings.HasPrefix(pkg, of+"/")
		}) {
			t.Errorf("cmd/penstock links %s, which is for tests", pkg)
		}
		for _, file := range f[1:] {
			if strings.HasPrefix(f[0], module) && filepath.Ext(file) == ".c" {
				t.Errorf("cmd/penstock embeds %s of %s: C belongs into internal/lab/testenv", file, pkg)
			}
		}
	}
	if !linked["engine/xdp"] {
		t.Fatalf("the program does not link engine/xdp: this test does not see what go list prints:\n%.300s", out)
	}
}

func TestRestrictedImports(t *testing.T) {
	for _, s := range load(t) {
		for _, i := range imports(s) {
			who, limited := restricted[i]
			if !limited || slices.Contains(who, s.pkg) {
				continue
			}
			// Tests may use system calls to build hostile peers, never cgo.
			if s.test && i != "C" {
				continue
			}
			t.Errorf("%s: imports %q, which only %v may", s.rel, i, who)
		}
	}
}

func TestUnsafeOnlyInNamedFiles(t *testing.T) {
	for _, s := range load(t) {
		if s.test || strings.HasSuffix(s.rel, "_unsafe.go") {
			continue
		}
		if slices.Contains(imports(s), "unsafe") {
			t.Errorf("%s: imports unsafe; only files named *_unsafe.go may", s.rel)
		}
		if strings.Contains(s.text, "\n//go:"+"linkname") {
			t.Errorf("%s: uses linkname", s.rel)
		}
	}
}

// assembly lists the packages that may have assembly: copies and checksums, conversions, and calls
// of C.
var assembly = []string{"mem/vec", "tensor/convert", "internal/dl"}

func TestAssemblyOnlyInNamedPackages(t *testing.T) {
	root := "../.."
	filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			t.Fatal(err)
		}
		if rel, _ := filepath.Rel(root, filepath.Dir(p)); strings.HasSuffix(p, ".s") &&
			!slices.Contains(assembly, filepath.ToSlash(rel)) {
			t.Errorf("%s: assembly outside %v", p, assembly)
		}
		return nil
	})
}

func TestFilesStaySmall(t *testing.T) {
	for _, s := range load(t) {
		most := maxLines
		if core := strings.HasPrefix(s.rel, "transfer/"); core && !s.test {
			most = coreLines
		}
		if s.lines > most {
			t.Errorf("%s: %d lines, and no file here has more than %d", s.rel, s.lines, most)
		}
	}
}

func TestPackagesAreDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range load(t) {
		if s.test {
			continue
		}
		documented[s.pkg] = documented[s.pkg] || s.file.Doc != nil && len(s.file.Doc.Text()) > 80
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %q has no doc comment that a newcomer could start from", pkg)
		}
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	for _, s := range load(t) {
		if s.test || s.pkg == "cmd/penstock" {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && receiverExported(d) && !wellKnown[d.Name.Name] {
					t.Errorf("%s: %s has no doc comment", s.fset.Position(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if ts, ok := spec.(*ast.TypeSpec); ok && ts.Name.IsExported() && d.Doc == nil && ts.Doc == nil &&
						ts.Comment == nil {
						t.Errorf("%s: type %s has no doc comment", s.fset.Position(ts.Pos()), ts.Name.Name)
					}
				}
			}
		}
	}
}

// wellKnown are methods whose meaning an interface of the standard library fixes.
var wellKnown = map[string]bool{"String": true, "Error": true, "Unwrap": true, "Is": true, "Len": true, "Less": true,
	"Swap": true}

func receiverExported(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch t := typ.(type) {
		case *ast.StarExpr:
			typ = t.X
		case *ast.IndexExpr:
			typ = t.X
		case *ast.IndexListExpr:
			typ = t.X
		case *ast.Ident:
			return t.IsExported()
		default:
			return false
		}
	}
}

func TestNoSleepsInCode(t *testing.T) {
	for _, s := range load(t) {
		if !s.test && strings.Contains(s.text, "time."+"Sleep(") {
			t.Errorf("%s: sleeps; wait for an event instead", s.rel)
		}
	}
}

func TestNoPathsOfAMachine(t *testing.T) {
	for _, s := range load(t) {
		for _, bad := range []string{"/work/" + "main", "/work/" + "shared", "/root" + "/", "proxy.golang" + ".org"} {
			if strings.Contains(s.text, bad) {
				t.Errorf("%s: contains %q", s.rel, bad)
			}
		}
	}
}

// Every test that these pages name is there, and so is a subtest, as far as its name is written in
// the package's tests.
func TestPagesNameTests(t *testing.T) {
	have := map[string]bool{}
	for _, s := range load(t) {
		if !s.test {
			continue
		}
		pkg := path.Base(s.pkg)
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil {
					have[pkg+"."+n.Name.Name] = true
				}
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					have[pkg+"/"+text] = true
				}
			}
			return true
		})
	}
	name := regexp.MustCompile("`(?:([a-z/]+)\\.)?((?:Test|Fuzz)[A-Za-z]+)(?:/([A-Za-z0-9 ]+))?`")
	for _, page := range []struct {
		file, pkg string
		least     int
	}{{"xdp.md", "engine/xdp", 40}, {"verbs-tests.md", "transfer/path/verbs", 60}, {"engine-rdma.md", "engine/rdma", 0},
		{"security.md", "transfer/identity", 15}, {"security-limits.md", "transfer/identity", 60},
		{"feed.md", "stage/feed", 40}} {
		b, err := os.ReadFile("../../docs/" + page.file)
		if err != nil {
			t.Fatal(err)
		}
		named := name.FindAllStringSubmatch(string(b), -1)
		if len(named) < page.least {
			t.Errorf("docs/%s names %d tests", page.file, len(named))
		}
		for _, m := range named {
			pkg := path.Base(cmp.Or(m[1], page.pkg))
			if !have[pkg+"."+m[2]] || m[3] != "" && !have[pkg+"/"+m[3]] {
				t.Errorf("docs/%s names %s, and package %s has no such test", page.file, m[0], pkg)
			}
		}
	}
}

// Every line of the tables of docs/security.md and docs/security-limits.md that say what holds
// names a test.
func TestSecurityNamesTests(t *testing.T) {
	rows, header := 0, ""
	for _, page := range []string{"docs/security.md", "docs/security-limits.md"} {
		b, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			switch line = strings.TrimSpace(line); {
			case !strings.HasPrefix(line, "|"):
				header = ""
			case header == "":
				header = line
			case strings.HasSuffix(header, "| test |") && !strings.HasPrefix(line, "|---"):
				rows++
				if cells := strings.Split(line, "|"); !strings.Contains(cells[len(cells)-2], "Test") {
					t.Errorf("%s: no test attacks this line: %s", page, line)
				}
			}
		}
	}
	if rows < 60 {
		t.Errorf("the pages have %d lines that name a test, expected those of all tables", rows)
	}
}
