package system

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"
)

// settings are the fields of options that are not zero, spelled as keys of files are.
func settings(options any) (out []string) {
	v := reflect.ValueOf(options)
	if !v.IsValid() || v.Kind() != reflect.Struct {
		return nil
	}
	for i := range v.NumField() {
		switch f := v.Type().Field(i); {
		case !f.IsExported() || v.Field(i).IsZero():
		case f.Anonymous:
			out = append(out, settings(v.Field(i).Interface())...)
		default:
			out = append(out, fmt.Sprintf("%s=%v", key(f.Name), v.Field(i).Interface()))
		}
	}
	return out
}

// key is the name of a field in the spelling of files: ReceiveBuffer is receive_buffer, and MTU is
// mtu.
func key(field string) string {
	var b strings.Builder
	for i, r := range field {
		if unicode.IsUpper(r) && i > 0 && (unicode.IsLower(rune(field[i-1])) || i+1 < len(field) &&
			unicode.IsLower(rune(field[i+1]))) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
