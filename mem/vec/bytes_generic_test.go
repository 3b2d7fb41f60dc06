//go:build noasm || !amd64

package vec

// processors calls f: there are no kernels.
func processors(f func(name string)) { f("Go") }
