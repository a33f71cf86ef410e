#!/usr/bin/env bash
# make test: builds everything and runs every test that needs no GPU. The last line reads "N passed, N failed".
set -u -o pipefail
cd "$(dirname "$0")/.."

# Set by those who run this unattended, who have an hour and a half: what random input gets of it depends on what is
# left.
ci=${CI:-}
ci_fuzz_until_seconds=2700 ci_done_by_seconds=4900
# What stands then has failed, and is named: a run that is ended from outside says nothing at all.
ci_end_seconds=5100
until=()
[ -n "$ci" ] && until=(--stop-time "$(date -d "+$ci_end_seconds seconds" +%T)")
left_out=""
fuzz_seconds() {
  if [ -n "${GPUWIRE_FUZZ_SECONDS:-}" ]; then echo "$GPUWIRE_FUZZ_SECONDS"
  elif [ -n "$ci" ] && [ "$SECONDS" -lt "$ci_fuzz_until_seconds" ]; then echo 60
  else echo 10; fi
}
passed=0
failed=0
failures=""
# What failed says why once more at the end, where it is found.
reasons=$(mktemp)
reason_lines=40
# What tests have left out, and why: for want of a network, of a package, of root.
skipped=$(mktemp)
trap 'rm -f "$reasons" "$skipped"' EXIT

# count NAME COMMAND...: runs a command as one test.
count() {
  local name=$1 log
  shift
  log=$(mktemp)
  if "$@" 2>&1 | tee "$log"; then passed=$((passed + 1))
  else
    failed=$((failed + 1)); failures="$failures $name"
    { echo "== $name"; grep -A "$reason_lines" FAILED "$log" || tail -n "$reason_lines" "$log"; } >>"$reasons"
  fi
  rm -f "$log"
}

finish() {
  cat "$reasons"
  sort "$skipped" | uniq -c | sed 's/^ *\([0-9]*\) \(.*\)$/left out because \2 (tests: \1)/'
  echo "after $SECONDS s: done"
  [ -n "$failures" ] && echo "failed:$failures"
  [ -n "$left_out" ] && echo "left out, for this machine is too slow:$left_out"
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
  exit $?
}

# run_ctest BUILD [CTEST ARGUMENTS...]: adds ctest's counts to ours.
run_ctest() {
  local build=$1 log
  shift
  log=$build/ctest.log
  echo "after $SECONDS s: testing $build"
  ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$(nproc)" "${until[@]}" "$@" 2>&1 |
    tee "$log"
  # Python's words for it, and those of a test that is left out as a whole.
  sed -n "s/^.* \.\.\. skipped ['\"]\(.*\)['\"]\$/\1/p; s/^skipped: //p" "$build/Testing/Temporary/LastTest.log" \
    >>"$skipped"
  local total bad
  total=$(sed -n 's/^.* tests failed out of \([0-9]*\)$/\1/p;
    s/^.*tests passed, .* out of \([0-9]*\)$/\1/p' "$log" | tail -1)
  bad=$(sed -n 's/^.*tests passed, \([0-9]*\) tests failed out of .*$/\1/p' "$log" | tail -1)
  if [ -z "$total" ]; then
    failed=$((failed + 1)); failures="$failures ctest:$build"
    return
  fi
  passed=$((passed + total - ${bad:-0}))
  failed=$((failed + ${bad:-0}))
  [ "${bad:-0}" = 0 ] && return
  failures="$failures $(sed -n 's/^[[:space:]]*[0-9]* - \(.*\) (.*)$/\1/p' "$log" | tr '\n' ' ')"
  # A test's output follows the line of its result; the end of it mostly says why.
  awk -v lines="$reason_lines" '
    function tell() {
      if (!name) return
      print "== " name
      for (i = (n > lines ? n - lines + 1 : 1); i <= n; ++i) print kept[i]
      name = ""
    }
    /^ *[0-9]+\/[0-9]+ Test +#/ { tell(); n = 0; if (!/ Passed /) name = $0; next }
    /^ *Start +[0-9]+: / { next }
    /tests passed, / { tell() }
    { kept[++n] = $0 }
  ' "$log" >>"$reasons"
}

# build PRESET [TARGET...]
build() {
  local preset=$1 directory=build
  shift
  [ "$preset" = release ] || directory=build/$preset
  [ -f "$directory/build.ninja" ] || cmake --preset "$preset" >"$preset.configure.log" 2>&1 ||
    { cat "$preset.configure.log"; return 1; }
  rm -f "$preset.configure.log"
  echo "after $SECONDS s: building $directory ${*:-everything}"
  ninja -C "$directory" "$@" >"$directory/build.log" 2>&1 ||
    { grep -A20 'FAILED\|error:' "$directory/build.log" | head -80; return 1; }
}

cmake/install_packages.sh || { failures=" packages"; failed=1; finish; }

if build release; then
  passed=$((passed + 1))
  run_ctest build -LE '^gpu$'
else
  failed=$((failed + 1)); failures="$failures build"
fi

# Once more under the sanitizers: what reads bytes of a peer and what has threads of its own; all that can run under one
# (test/sanitizers.cmake) where that is asked for, which builds two more whole trees.
stage_seconds=$SECONDS
for sanitizer in asan tsan; do
  # Building and testing with one is taken to last as long as what was built and tested before it: the release, or the
  # other one.
  if [ -n "$ci" ] && [ $((SECONDS + stage_seconds)) -gt "$ci_done_by_seconds" ]; then
    left_out="$left_out $sanitizer (after $SECONDS s)"
    continue
  fi
  stage_began=$SECONDS
  if [ "${GPUWIRE_SANITIZERS:-}" = whole ]; then targets="" labels="^${sanitizer}(_whole)?\$"
  else targets=gpuwire_${sanitizer}_tests labels="^$sanitizer\$"; fi
  # shellcheck disable=SC2086  # none is no word
  if build $sanitizer $targets; then
    passed=$((passed + 1))
    run_ctest build/$sanitizer -L "$labels"
    # What reads bytes of others meets random input for longer than its test does. Fifteen targets, two at a time: a
    # minute in all, and eight in CI.
    if [ $sanitizer = asan ]; then
      count fuzz test/fuzz/run --build build/asan --counted --seconds "$(fuzz_seconds)" --together 2 --seed 20261
    fi
  else
    failed=$((failed + 1)); failures="$failures build-$sanitizer"
  fi
  stage_seconds=$((SECONDS - stage_began))
done

finish
