package dl

import (
	"path/filepath"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// library is the library of testdata, built for this machine.
func library(t testing.TB) *Library {
	t.Helper()
	version, err := filepath.Abs("testdata/lib.map")
	if err != nil {
		t.Fatal(err)
	}
	file, err := testenv.Compile("dl-test", []string{"testdata/lib.c"}, "-shared", "-O2", "-pthread",
		"-Wl,--version-script="+version)
	if err != nil {
		testenv.Missing(t, "a C compiler", err)
	}
	l, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func symbol(t testing.TB, l *Library, name string) Func {
	t.Helper()
	f, err := l.Symbol(name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Every argument arrives in its place, whatever the number of arguments.
func TestArguments(t *testing.T) {
	l := library(t)
	f6, f15 := symbol(t, l, "weigh6"), symbol(t, l, "weigh15")
	weights := []uintptr{1, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47}
	args := make([]uintptr, len(weights))
	var want, want6 uintptr
	for i, w := range weights {
		args[i] = uintptr(1)<<62 + uintptr(i)*1000003
		want += w * args[i]
		if i < 6 {
			want6 += w * args[i]
		}
	}
	a := args
	if got := f15.Call(args...); got != want {
		t.Errorf("15 arguments: %#x, want %#x", got, want)
	}
	if got := f6.Call(args[:6]...); got != want6 {
		t.Errorf("6 arguments: %#x, want %#x", got, want6)
	}
	if got, e := f15.CallErrno(args...); got != want || e != 0 {
		t.Errorf("15 arguments with errno: %#x, %d, want %#x, 0", got, e, want)
	}
	// weigh6 reads registers that a shorter call sets to zero.
	for n, got := range []uintptr{f6.Call0(), f6.Call1(a[0]), f6.Call2(a[0], a[1]), f6.Call3(a[0], a[1], a[2]),
		f6.Call4(a[0], a[1], a[2], a[3]),
		f6.Call5(a[0], a[1], a[2], a[3], a[4]), f6.Call6(a[0], a[1], a[2], a[3], a[4], a[5])} {
		var want uintptr
		for i := range n {
			want += weights[i] * args[i]
		}
		if got != want {
			t.Errorf("Call%d: %#x, want %#x", n, got, want)
		}
	}
	if got := int32(symbol(t, l, "minus").Call1(7)); got != -7 {
		t.Errorf("minus(7) = %d", got)
	}
	if got := symbol(t, l, "variadic").Call(4, 1, 2, 3, 4); got != ((1*3+2)*3+3)*3+4 {
		t.Errorf("variadic: %d", got)
	}
}
