// Package kernels holds the kernels that run on accelerators: OpenCL C source, compiled PTX, and a
// reference in Go.
//
// The sources are in cl/, with what they share in cl/penstock.h: names for both worlds, atomics
// with scopes, numbers in network order, views of headers. An OpenCL runtime builds them as they
// are, so that CI really runs them (PoCL, on the CPU); clang makes PTX of the same text, which is
// committed in ptx/ for the oldest and the newest architecture that matter, in the oldest version
// of PTX that each has, so that old drivers read it. "make generate" compiles it; a test compares
// the digest of the source that each PTX names, and compiles again where that clang is installed.
//
// Every form gives the same bytes for the same input, whatever the grid. Offsets and lengths are 64
// bits. Tables of pieces are checked on the device, since a wrong one must not write elsewhere;
// other arguments are the caller's to get right.
package kernels

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"regexp"

	"github.com/penstock-io/penstock/gpu/driver"
)

//go:generate go test -run ^TestPTXIsCurrent$ -update .

//go:embed cl/*.h cl/*.cl ptx/*.ptx
var files embed.FS

// The kernels. A table of pieces holds two 64-bit numbers for each: offset and length in bytes.
var (
	// Copy copies n bytes between two buffers, which do not overlap there: dst, dst_off, src,
	// src_off, n.
	Copy = program("copy", copyGo, buffer("dst"), u64("dst_off"), buffer("src"), u64("src_off"), u64("n"))
	// Fill repeats the 8 bytes of pattern, the lowest first: dst, off, n, pattern.
	Fill = program("fill", fillGo, buffer("dst"), u64("off"), u64("n"), u64("pattern"))
	// Gather makes rows of pieces: piece i of src goes to dst at i*stride. What does not fit is
	// left out and counted in the 32 bits at refused. One group for each piece: dst, dst_len,
	// stride, src, src_len, pieces, count, refused.
	Gather = program("gather", gatherGo, buffer("dst"), u64("dst_len"), u64("stride"), buffer("src"), u64("src_len"),
		buffer("pieces"), u32("count"), buffer("refused"))
	// Scatter makes pieces of rows, the other way round: dst, dst_len, pieces, count, src, src_len,
	// stride, refused.
	Scatter = program("scatter", scatterGo, buffer("dst"), u64("dst_len"), buffer("pieces"), u32("count"),
		buffer("src"), u64("src_len"), u64("stride"), buffer("refused"))
	// Checksum sums pieces as the Internet checksum does (RFC 1071), one 32-bit result for each:
	// the folded sum, not inverted, or 0xffffffff for a piece outside src. One group for each
	// piece: sums, src, src_len, pieces, count.
	Checksum = program("checksum", checksumGo, buffer("sums"), buffer("src"), u64("src_len"), buffer("pieces"),
		u32("count"))
	// Process reads the first floats of each packet in a table of slots; cl/process.cl has the
	// layout: results, slots, stride, count.
	Process = program("process", processGo, buffer("results"), buffer("slots"), u64("stride"), u32("count"))
	// Hold stays until the CPU stores something other than 0 in the first of two words, and stores
	// 1 in the second when it begins. One item: words. The memory must be seen by both while it
	// runs (CapSharedAtomics), and something else must be able to run beside it (CapResident).
	Hold = program("hold", holdGo, buffer("words"))
	// Tally is the least resident kernel: each group counts up to the first word, one for each
	// pass, and shows its count in the word 1 + group. Its state is in its checkpoint between
	// launches: control, words.
	Tally = program("tally", driver.Groups(tallyGo), buffer("control"), buffer("words"))
)

// All are the kernels, in order. The slice is the caller's.
func All() []*driver.Program {
	return []*driver.Program{Copy, Fill, Gather, Scatter, Checksum, Process, Hold, Tally, FeedParse, FeedEcho,
		FeedPower, FeedGemm, FeedSum, Reorder}
}

// PieceBytes is the size of an entry in a table of pieces, ResultBytes that of a result of Process,
// and SlotHeader that of what is before a slot's data.
const (
	PieceBytes  = 16
	ResultBytes = 24
	SlotHeader  = 16
)

// target is an architecture that PTX is made for, and the version of PTX times ten: the oldest that
// has what the kernels need.
type target struct{ sm, version int }

var targets = []target{{70, 60}, {90, 78}}

// file is where the PTX of a kernel is.
func (t target) file(name string) string { return fmt.Sprintf("ptx/%s.sm_%d.ptx", name, t.sm) }

func program(name string, f driver.GoFunc, params ...driver.Param) *driver.Program {
	p := &driver.Program{
		Name: name, Kernels: []driver.Signature{{Name: name, Params: params}},
		Source: Source(read("cl/" + name + ".cl")), Go: map[string]driver.GoFunc{name: f},
	}
	for _, t := range targets {
		if text := read(t.file(name)); text != "" {
			p.PTX = append(p.PTX, driver.PTX{SM: t.sm, Version: t.version, Text: text})
		}
	}
	return p
}

// read is an embedded file, "" where it is not there: tests see to that it is.
func read(name string) string {
	b, err := files.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(b)
}

// Source is the complete OpenCL C of a program whose kernels use cl/penstock.h: that header and
// body. Lines of the body that include another header of cl/, such as "resident.h", are replaced by
// it.
func Source(body string) string {
	return read("cl/penstock.h") + include.ReplaceAllStringFunc(body, func(line string) string {
		return read("cl/" + include.FindStringSubmatch(line)[1])
	})
}

var include = regexp.MustCompile(`(?m)^#include "(\w+\.h)"$`)

// digest names a source in the PTX that was made of it.
func digest(source string) string {
	sum := sha256.Sum256([]byte(source))
	return hex.EncodeToString(sum[:])
}

func buffer(name string) driver.Param { return driver.Param{Name: name, Type: driver.Buffer} }
func u32(name string) driver.Param    { return driver.Param{Name: name, Type: driver.U32} }
func u64(name string) driver.Param    { return driver.Param{Name: name, Type: driver.U64} }
