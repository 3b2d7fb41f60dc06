// Asm writes the assembly for amd64 of one package and its declarations: go generate runs it for
// convert and for vec.
package main

import (
	"flag"
	"log"

	. "github.com/mmcloughlin/avo/build"
)

func main() {
	flag.Parse()
	ConstraintExpr("!noasm")
	switch pkg := flag.Lookup("pkg").Value.String(); pkg {
	case "convert":
		convertAVX2()
		convertAVX512()
	case "vec":
		vecAVX2()
		vecAVX512()
	default:
		log.Fatalf("-pkg %q: expected convert or vec", pkg)
	}
	Generate()
}
