// Command agent runs in a lab guest: it executes commands, keeps files and connects to sockets for
// the tests outside.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gemel-storage/gemel/internal/testkit/kernel/guest"
)

func main() {
	os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	os.Setenv("HOME", "/root")
	s := &http.Server{Addr: fmt.Sprintf(":%d", guest.Port), Handler: handler(newProcesses()), ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(s.ListenAndServe())
}

func handler(p *processes) http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat("/run/lab-ready"); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	m.HandleFunc("POST /run", func(w http.ResponseWriter, r *http.Request) {
		if c, ok := command(w, r); ok {
			answer(w, run(r.Context(), c))
		}
	})
	m.HandleFunc("POST /start", func(w http.ResponseWriter, r *http.Request) {
		c, ok := command(w, r)
		if !ok {
			return
		}
		pid, err := p.start(c)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer(w, guest.Process{PID: pid, Running: true})
	})
	m.HandleFunc("GET /process/{pid}", func(w http.ResponseWriter, r *http.Request) {
		pid, _ := strconv.Atoi(r.PathValue("pid"))
		state, err := p.look(pid)
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		answer(w, state)
	})
	m.HandleFunc("PUT /file", put)
	m.HandleFunc("GET /file", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, r.URL.Query().Get("path")) })
	m.HandleFunc("GET /dial", dial)
	return m
}

func command(w http.ResponseWriter, r *http.Request) (c guest.Command, ok bool) {
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil || len(c.Argv) == 0 {
		http.Error(w, fmt.Sprintf("no command: %v", err), http.StatusBadRequest)
		return c, false
	}
	return c, true
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		log.Print(err)
	}
}

// put writes a file atomically: a binary may be running under its name.
func put(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("path")
	mode, err := strconv.ParseUint(r.URL.Query().Get("mode"), 8, 32)
	err = errors.Join(err, os.MkdirAll(filepath.Dir(name), 0o755))
	if err == nil {
		err = write(name, r.Body, os.FileMode(mode))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func write(name string, from io.Reader, mode os.FileMode) error {
	f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// dial turns the request's connection into one to a socket of the guest.
func dial(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	var d net.Dialer
	to, err := d.DialContext(ctx, r.URL.Query().Get("network"), r.URL.Query().Get("address"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer to.Close()
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", "gemel-lab")
	w.WriteHeader(http.StatusSwitchingProtocols)
	from, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer from.Close()
	done := make(chan struct{}, 2)
	go func() { io.Copy(to, buffered); done <- struct{}{} }()
	go func() { io.Copy(from, to); done <- struct{}{} }()
	<-done
}
