// The part of KJ (Cap'n Proto's base library) that throws, for use inside a shared library.
//
// Debian's libkj.a is built for programs: its exception.o reaches a thread-local variable in a way that only a program
// may, so it cannot be linked into libcuda.so.1. Everything else in libkj.a and libcapnp.a can be linked. This file
// implements the interface of kj/exception.h (0.9) in its place; the linker then leaves exception.o out. Stack traces
// are not taken: this code runs inside the user's programs, where unwinding through foreign frames is a risk, and no
// one would read the traces.
#include <kj/debug.h>
#include <kj/exception.h>
#include <kj/function.h>

#include <exception>

#include "client_stub/driver/process/log_stderr.hpp"

namespace kj {

// --- exceptions

Exception::Exception(Type type, const char* file, int line, String description) noexcept
    : file(file), line(line), type(type), description(mv(description)), traceCount(0) {}

Exception::Exception(Type type, String file, int line, String description) noexcept
    : ownFile(mv(file)), file(ownFile.cStr()), line(line), type(type), description(mv(description)), traceCount(0) {}

Exception::Exception(const Exception& other) noexcept
    : file(other.file), line(other.line), type(other.type), description(str(other.description)), traceCount(0) {
  if (other.file == other.ownFile.cStr()) {
    ownFile = heapString(other.ownFile);
    file = ownFile.cStr();
  }
  if (other.remoteTrace != nullptr) remoteTrace = str(other.remoteTrace);
  KJ_IF_MAYBE (head, other.context) {
    context = heap<Context>(**head);
  }
}

Exception::~Exception() noexcept {}

Exception::Context::Context(const Context& other) noexcept
    : file(other.file), line(other.line), description(str(other.description)) {
  KJ_IF_MAYBE (following, other.next) {
    next = heap<Context>(**following);
  }
}

void Exception::wrapContext(const char* where, int at_line, String&& text) {
  context = heap<Context>(where, at_line, mv(text), mv(context));
}

void Exception::extendTrace(uint, uint) {}
void Exception::truncateCommonTrace() {}
void Exception::addTrace(void*) {}
void Exception::addTraceHere() {}

StringPtr KJ_STRINGIFY(Exception::Type type) {
  switch (type) {
    case Exception::Type::FAILED: return "failed";
    case Exception::Type::OVERLOADED: return "overloaded";
    case Exception::Type::DISCONNECTED: return "disconnected";
    case Exception::Type::UNIMPLEMENTED: return "unimplemented";
  }
  return "failed";
}

String KJ_STRINGIFY(const Exception& exception) {
  return str(exception.getFile(), ":", exception.getLine(), ": ", exception.getType(), ": ",
             exception.getDescription());
}

StringPtr KJ_STRINGIFY(LogSeverity severity) {
  switch (severity) {
    case LogSeverity::INFO: return "info";
    case LogSeverity::WARNING: return "warning";
    case LogSeverity::ERROR: return "error";
    case LogSeverity::FATAL: return "fatal";
    case LogSeverity::DBG: return "debug";
  }
  return "error";
}

// The thrown type: caught as kj::Exception by code that knows KJ and as std::exception by the rest.
class ExceptionImpl final : public Exception, public std::exception {
 public:
  explicit ExceptionImpl(Exception&& other) : Exception(mv(other)) {}
  ExceptionImpl(const ExceptionImpl& other) : Exception(other) {}
  const char* what() const noexcept override { return getDescription().cStr(); }
};

// --- callbacks: KJ's own code registers them for the length of a scope, to add context to passing exceptions -------

namespace {
thread_local ExceptionCallback* t_newest = nullptr;
}  // namespace

class ExceptionCallback::RootExceptionCallback final : public ExceptionCallback {
 public:
  RootExceptionCallback() : ExceptionCallback(*this) {}
  void onRecoverableException(Exception&& exception) override {
    // A destructor that runs because of another exception must not throw.
    if (std::uncaught_exceptions() == 0) throw ExceptionImpl(mv(exception));
  }
  void onFatalException(Exception&& exception) override { throw ExceptionImpl(mv(exception)); }
  void logMessage(LogSeverity severity, const char*, int, int, String&& text) override {
    if (severity >= LogSeverity::WARNING) gpuwire::client::log_stderr(text.cStr());
  }
  StackTraceMode stackTraceMode() override { return StackTraceMode::NONE; }
  Function<void(Function<void()>)> getThreadInitializer() override {
    return [](Function<void()> run) { run(); };
  }
};

ExceptionCallback::ExceptionCallback() : next(getExceptionCallback()) { t_newest = this; }
ExceptionCallback::ExceptionCallback(ExceptionCallback& next) : next(next) {}
ExceptionCallback::~ExceptionCallback() noexcept(false) {
  if (&next != this) t_newest = &next;
}
void ExceptionCallback::onRecoverableException(Exception&& exception) { next.onRecoverableException(mv(exception)); }
void ExceptionCallback::onFatalException(Exception&& exception) { next.onFatalException(mv(exception)); }
void ExceptionCallback::logMessage(LogSeverity severity, const char* file, int line, int depth, String&& text) {
  next.logMessage(severity, file, line, depth, mv(text));
}
ExceptionCallback::StackTraceMode ExceptionCallback::stackTraceMode() { return next.stackTraceMode(); }
Function<void(Function<void()>)> ExceptionCallback::getThreadInitializer() { return next.getThreadInitializer(); }

ExceptionCallback& getExceptionCallback() {
  // Never destroyed: exit handlers of the program may still make calls.
  static auto* const root = new ExceptionCallback::RootExceptionCallback;
  return t_newest ? *t_newest : *root;
}

void throwFatalException(Exception&& exception, uint) {
  getExceptionCallback().onFatalException(mv(exception));
  std::terminate();  // no callback may return, and the root one throws
}

void throwRecoverableException(Exception&& exception, uint) {
  getExceptionCallback().onRecoverableException(mv(exception));
}

// --- running code that may throw

UnwindDetector::UnwindDetector() : uncaughtCount(uint(std::uncaught_exceptions())) {}
bool UnwindDetector::isUnwinding() const { return uint(std::uncaught_exceptions()) > uncaughtCount; }

void UnwindDetector::catchExceptionsAsSecondaryFaults(_::Runnable& runnable) const {
  _::runCatchingExceptions(runnable);
}

Maybe<Exception> _::runCatchingExceptions(Runnable& runnable) {
  try {
    runnable.run();
    return nullptr;
  } catch (Exception& exception) {
    return mv(exception);
  } catch (std::exception& exception) {
    return Exception(Exception::Type::FAILED, "(unknown)", -1, str(exception.what()));
  } catch (...) {
    return Exception(Exception::Type::FAILED, "(unknown)", -1, str("an exception of unknown type"));
  }
}

// --- stack traces: none

ArrayPtr<void* const> getStackTrace(ArrayPtr<void*>, uint) { return nullptr; }
String getStackTrace() { return nullptr; }
String stringifyStackTrace(ArrayPtr<void* const>) { return nullptr; }
String stringifyStackTraceAddresses(ArrayPtr<void* const>) { return nullptr; }
void printStackTraceOnCrash() {}
StringPtr trimSourceFilename(StringPtr filename) { return filename; }

}  // namespace kj
