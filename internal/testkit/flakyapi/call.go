package flakyapi

import (
	"net/http"
	"strings"
)

// parse reads a request's path as the API server does: /api/VERSION/… and /apis/GROUP/VERSION/…,
// then [namespaces/NS/]RESOURCE[/NAME[/SUBRESOURCE]].
func parse(r *http.Request) Call {
	c := Call{Verb: r.Method, Path: r.URL.Path}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		c.Group, parts = parts[1], parts[3:]
	default:
		return c
	}
	if parts[0] == "namespaces" && len(parts) > 1 {
		// The namespace itself, its status and its finalizers; otherwise what lies in it.
		if len(parts) == 2 || len(parts) == 3 && (parts[2] == "status" || parts[2] == "finalize") {
			c.Namespace = parts[1]
		} else {
			c.Namespace, parts = parts[1], parts[2:]
		}
	}
	c.Resource = parts[0]
	if len(parts) > 1 {
		c.Name = parts[1]
	}
	if len(parts) > 2 {
		c.Subresource = strings.Join(parts[2:], "/")
	}
	watch := r.URL.Query().Get("watch")
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		switch {
		case watch == "true" || watch == "1":
			c.Verb = "watch"
		case c.Name == "":
			c.Verb = "list"
		default:
			c.Verb = "get"
		}
	case http.MethodPost:
		c.Verb = "create"
	case http.MethodPut:
		c.Verb = "update"
	case http.MethodPatch:
		c.Verb = "patch"
	case http.MethodDelete:
		c.Verb = "delete"
		if c.Name == "" {
			c.Verb = "deletecollection"
		}
	}
	return c
}
