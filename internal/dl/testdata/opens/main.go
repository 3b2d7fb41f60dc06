// Opens opens the library that its argument names, calls it and prints the result. TestProgram
// builds it in several ways.
package main

import (
	"fmt"
	"os"

	"github.com/penstock-io/penstock/internal/dl"
)

func main() {
	l, err := dl.Open(os.Args[1])
	if err != nil {
		fmt.Println(err)
		return
	}
	f, err := l.Symbol("getpid")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the library says", int32(f.Call0()) == int32(os.Getpid()))
}
