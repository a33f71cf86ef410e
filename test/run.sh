#!/usr/bin/env bash
# make test: builds everything and runs every test that needs no GPU; with CI set, or GPUWIRE_SANITIZERS, a part of them
# once more under the sanitizers, and random input. The last line reads "N passed, N failed".
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1

# Set by those who run this unattended, who have an hour and a half.
ci=${CI:-}
ci_done_by_seconds=4900
# What stands then has failed, and is named: a run that is ended from outside says nothing at all.
ci_end_seconds=5100
until=()
[ -n "$ci" ] && until=(--stop-time "$(date -d "+$ci_end_seconds seconds" +%T)")
# Which tests run under the sanitizers: none, some (those labelled asan and tsan), whole (test/sanitizers.cmake).
sanitized=${GPUWIRE_SANITIZERS:-${ci:+some}}
fuzz_seconds=${GPUWIRE_FUZZ_SECONDS:-10}
# Most tests wait for other processes half of their time: with one for each core, half of the cores' time is left over.
tests_together=$(($(nproc) * 2))
left_out=""
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
  [ -z "$sanitized" ] && echo "not asked for: the sanitizers and random input (CI=true make test)"
  echo "not asked for: the long forms of tests (make test-long)"
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
  ctest --test-dir "$build" --output-on-failure --output-junit ctest.xml --no-tests=error -j "$tests_together" \
    "${until[@]}" "$@" 2>&1 | tee "$log"
  # Python's words for it, and those of a test that is left out as a whole. Not of LastTest.log: a test that asks ctest
  # which tests there are empties it.
  sed "s/&apos;/'/g; s/&quot;/\"/g" "$build/ctest.xml" |
    sed -n "s/^.* \.\.\. skipped ['\"]\(.*\)['\"]\$/\1/p; s/^skipped: //p; s/^.*<system-out>skipped: //p" >>"$skipped"
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
  failures="$failures $(sed -n '/^The following tests FAILED:/,$s/^[[:space:]]*[0-9]* - \(.*\) (.*)$/\1/p' "$log" |
    tr '\n' ' ')"
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

# build PRESET [TARGET...]: what is not built when CI would end it counts as a failure, too.
build() {
  local preset=$1 directory=build limit=infinity
  shift
  [ "$preset" = release ] || directory=build/$preset
  [ -f "$directory/build.ninja" ] || cmake --preset "$preset" >"$preset.configure.log" 2>&1 ||
    { cat "$preset.configure.log"; return 1; }
  rm -f "$preset.configure.log"
  echo "after $SECONDS s: building $directory ${*:-everything}"
  [ -n "$ci" ] && limit=$((ci_end_seconds > SECONDS ? ci_end_seconds - SECONDS : 1))
  timeout --foreground "$limit" ninja -C "$directory" "$@" >"$directory/build.log" 2>&1 && return
  grep -A20 'FAILED\|error:' "$directory/build.log" | head -80
  echo "after $SECONDS s: $directory is not built; at its end ninja said:"
  tail -n 3 "$directory/build.log"
  return 1
}

cmake/install_packages.sh || { failures=" packages"; failed=1; finish; }

if build release; then
  passed=$((passed + 1))
  run_ctest build -LE '^(gpu|long)$'
else
  failed=$((failed + 1)); failures="$failures build"
fi
[ -z "$sanitized" ] && finish

# Once more under the sanitizers: what reads bytes of a peer and what has threads of its own; all that can run under one
# where that is asked for, which builds two more whole trees.
stage_seconds=$SECONDS
for sanitizer in asan tsan; do
  # Building and testing with one is taken to last as long as what was built and tested before it: the release, or the
  # other one.
  if [ -n "$ci" ] && [ $((SECONDS + stage_seconds)) -gt "$ci_done_by_seconds" ]; then
    left_out="$left_out $sanitizer (after $SECONDS s)"
    continue
  fi
  stage_began=$SECONDS
  if [ "$sanitized" = whole ]; then targets="" labels="^${sanitizer}(_whole)?\$"
  else targets=gpuwire_${sanitizer}_tests labels="^$sanitizer\$"; fi
  # shellcheck disable=SC2086  # none is no word
  if build $sanitizer $targets; then
    passed=$((passed + 1))
    run_ctest build/$sanitizer -L "$labels"
    # What reads bytes of others meets random input for longer than its test does: fifteen targets, two at a time.
    if [ $sanitizer = asan ]; then
      count fuzz test/fuzz/run --build build/asan --counted --seconds "$fuzz_seconds" --together 2 --seed 20261
    fi
  else
    failed=$((failed + 1)); failures="$failures build-$sanitizer"
  fi
  stage_seconds=$((SECONDS - stage_began))
done

finish
