package penstock

import (
	"fmt"
	"reflect"
)

// settings are the fields of options that are not zero, for people.
func settings(options any) (out []string) {
	v := reflect.ValueOf(options)
	if !v.IsValid() || v.Kind() != reflect.Struct {
		return nil
	}
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() && !v.Field(i).IsZero() {
			out = append(out, fmt.Sprintf("%s=%v", f.Name, v.Field(i).Interface()))
		}
	}
	return out
}
