// Command penstock runs the commands of package cli. Run "penstock help" for its commands.
package main

import (
	"os"

	"github.com/penstock-io/penstock/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
