#!/usr/bin/env bash
# mpirun for programs with AddressSanitizer, without the leak check: Open MPI unloads plug-ins that keep memory,
# and a suppression cannot name what is no longer there. Other tests of the same code are searched for leaks.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 exec mpirun "$@"
