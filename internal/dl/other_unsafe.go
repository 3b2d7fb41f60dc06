//go:build !linux || (!amd64 && !arm64) || static

package dl

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// On other systems, and in a program that must not need a loader (-tags static), the package builds
// and says that it finds nothing.
var fewPC, manyPC uintptr

func cgocall(fn uintptr, arg unsafe.Pointer) int32 { panic(unsupported()) }

func unsupported() error {
	if runtime.GOOS == "linux" && (runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64") {
		return errors.New("this program was built with -tags static, which leaves out C libraries: build it without " +
			"that tag")
	}
	return fmt.Errorf("C libraries can be called on linux/amd64 and linux/arm64, and this is %s/%s", runtime.GOOS,
		runtime.GOARCH)
}

func dlopen(name string) (uintptr, error) { return 0, unsupported() }

func loaded(name string) bool { return false }

func dlsym(handle uintptr, name string) (uintptr, error) { return 0, unsupported() }

func dlclose(handle uintptr) error { return unsupported() }

const everything = 0
