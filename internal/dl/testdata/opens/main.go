// Opens is a program that opens the library that it is told and says what came of it. TestProgram builds it in several ways.
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
