// The renaming tables of Python's _compat_pickle.py, from Python 3 to Python 2.
#include <algorithm>
#include <iterator>

#include "pickle/nodes.h"

namespace dsckpt::pickle {
namespace {

struct Renamed {
  std::string_view module;
  std::string_view name;
  std::string_view old_module;
  std::string_view old_name;
};

constexpr Renamed kNames[] = {
    {"_functools", "reduce", "__builtin__", "reduce"},
    {"_socket", "socket", "socket", "_socketobject"},
    {"builtins", "ModuleNotFoundError", "exceptions", "ImportError"},
    {"builtins", "chr", "__builtin__", "unichr"},
    {"builtins", "filter", "itertools", "ifilter"},
    {"builtins", "int", "__builtin__", "long"},
    {"builtins", "map", "itertools", "imap"},
    {"builtins", "range", "__builtin__", "xrange"},
    {"builtins", "str", "__builtin__", "unicode"},
    {"builtins", "zip", "itertools", "izip"},
    {"collections", "UserDict", "UserDict", "IterableUserDict"},
    {"collections", "UserList", "UserList", "UserList"},
    {"collections", "UserString", "UserString", "UserString"},
    {"dbm", "whichdb", "whichdb", "whichdb"},
    {"functools", "reduce", "__builtin__", "reduce"},
    {"http.server", "CGIHTTPRequestHandler", "CGIHTTPServer", "CGIHTTPRequestHandler"},
    {"http.server", "SimpleHTTPRequestHandler", "SimpleHTTPServer", "SimpleHTTPRequestHandler"},
    {"itertools", "filterfalse", "itertools", "ifilterfalse"},
    {"itertools", "zip_longest", "itertools", "izip_longest"},
    {"multiprocessing.connection", "Connection", "_multiprocessing", "Connection"},
    {"multiprocessing.context", "AuthenticationError", "multiprocessing", "AuthenticationError"},
    {"multiprocessing.context", "BufferTooShort", "multiprocessing", "BufferTooShort"},
    {"multiprocessing.context", "Process", "multiprocessing.process", "Process"},
    {"multiprocessing.context", "ProcessError", "multiprocessing", "ProcessError"},
    {"multiprocessing.popen_fork", "Popen", "multiprocessing.forking", "Popen"},
    {"socket", "fromfd", "_socket", "fromfd"},
    {"sys", "intern", "__builtin__", "intern"},
    {"tkinter.filedialog", "FileDialog", "FileDialog", "FileDialog"},
    {"tkinter.filedialog", "LoadFileDialog", "FileDialog", "LoadFileDialog"},
    {"tkinter.filedialog", "SaveFileDialog", "FileDialog", "SaveFileDialog"},
    {"tkinter.simpledialog", "SimpleDialog", "SimpleDialog", "SimpleDialog"},
    {"urllib.error", "ContentTooShortError", "urllib", "ContentTooShortError"},
    {"urllib.error", "HTTPError", "urllib2", "HTTPError"},
    {"urllib.error", "URLError", "urllib2", "URLError"},
    {"urllib.parse", "quote", "urllib", "quote"},
    {"urllib.parse", "quote_plus", "urllib", "quote_plus"},
    {"urllib.parse", "unquote", "urllib", "unquote"},
    {"urllib.parse", "unquote_plus", "urllib", "unquote_plus"},
    {"urllib.parse", "urlencode", "urllib", "urlencode"},
    {"urllib.request", "getproxies", "urllib", "getproxies"},
    {"urllib.request", "pathname2url", "urllib", "pathname2url"},
    {"urllib.request", "url2pathname", "urllib", "url2pathname"},
    {"urllib.request", "urlcleanup", "urllib", "urlcleanup"},
    {"urllib.request", "urlopen", "urllib", "urlopen"},
    {"urllib.request", "urlretrieve", "urllib", "urlretrieve"},
    {"xmlrpc.server", "DocCGIXMLRPCRequestHandler", "DocXMLRPCServer",
     "DocCGIXMLRPCRequestHandler"},
    {"xmlrpc.server", "DocXMLRPCRequestHandler", "DocXMLRPCServer", "DocXMLRPCRequestHandler"},
    {"xmlrpc.server", "DocXMLRPCServer", "DocXMLRPCServer", "DocXMLRPCServer"},
    {"xmlrpc.server", "ServerHTMLDoc", "DocXMLRPCServer", "ServerHTMLDoc"},
    {"xmlrpc.server", "XMLRPCDocGenerator", "DocXMLRPCServer", "XMLRPCDocGenerator"},
};

constexpr std::pair<std::string_view, std::string_view> kModules[] = {
    {"_bz2", "bz2"},
    {"_dbm", "dbm"},
    {"_dummy_thread", "dummy_thread"},
    {"_functools", "functools"},
    {"_gdbm", "gdbm"},
    {"_markupbase", "markupbase"},
    {"_pickle", "pickle"},
    {"_thread", "thread"},
    {"builtins", "__builtin__"},
    {"collections.abc", "_abcoll"},
    {"configparser", "ConfigParser"},
    {"copyreg", "copy_reg"},
    {"dbm", "anydbm"},
    {"dbm.bsd", "dbhash"},
    {"dbm.dumb", "dumbdbm"},
    {"dbm.gnu", "gdbm"},
    {"dbm.ndbm", "dbm"},
    {"html.entities", "htmlentitydefs"},
    {"html.parser", "HTMLParser"},
    {"http.client", "httplib"},
    {"http.cookiejar", "cookielib"},
    {"http.cookies", "Cookie"},
    {"http.server", "BaseHTTPServer"},
    {"queue", "Queue"},
    {"reprlib", "repr"},
    {"socketserver", "SocketServer"},
    {"subprocess", "commands"},
    {"test.support", "test.test_support"},
    {"tkinter", "Tkinter"},
    {"tkinter.colorchooser", "tkColorChooser"},
    {"tkinter.commondialog", "tkCommonDialog"},
    {"tkinter.constants", "Tkconstants"},
    {"tkinter.dialog", "Dialog"},
    {"tkinter.dnd", "Tkdnd"},
    {"tkinter.filedialog", "tkFileDialog"},
    {"tkinter.font", "tkFont"},
    {"tkinter.messagebox", "tkMessageBox"},
    {"tkinter.scrolledtext", "ScrolledText"},
    {"tkinter.simpledialog", "tkSimpleDialog"},
    {"tkinter.tix", "Tix"},
    {"tkinter.ttk", "ttk"},
    {"urllib.parse", "urlparse"},
    {"urllib.request", "urllib2"},
    {"urllib.robotparser", "robotparser"},
    {"winreg", "_winreg"},
    {"xmlrpc.client", "xmlrpclib"},
    {"xmlrpc.server", "SimpleXMLRPCServer"},
};

// Names that moved from exceptions to builtins.
constexpr std::string_view kExceptions[] = {"ArithmeticError",
                                            "AssertionError",
                                            "AttributeError",
                                            "BaseException",
                                            "BufferError",
                                            "BytesWarning",
                                            "DeprecationWarning",
                                            "EOFError",
                                            "EnvironmentError",
                                            "Exception",
                                            "FloatingPointError",
                                            "FutureWarning",
                                            "GeneratorExit",
                                            "IOError",
                                            "ImportError",
                                            "ImportWarning",
                                            "IndentationError",
                                            "IndexError",
                                            "KeyError",
                                            "KeyboardInterrupt",
                                            "LookupError",
                                            "MemoryError",
                                            "NameError",
                                            "NotImplementedError",
                                            "OSError",
                                            "OverflowError",
                                            "PendingDeprecationWarning",
                                            "ReferenceError",
                                            "RuntimeError",
                                            "RuntimeWarning",
                                            "StopIteration",
                                            "SyntaxError",
                                            "SyntaxWarning",
                                            "SystemError",
                                            "SystemExit",
                                            "TabError",
                                            "TypeError",
                                            "UnboundLocalError",
                                            "UnicodeDecodeError",
                                            "UnicodeEncodeError",
                                            "UnicodeError",
                                            "UnicodeTranslateError",
                                            "UnicodeWarning",
                                            "UserWarning",
                                            "ValueError",
                                            "Warning",
                                            "ZeroDivisionError"};

// Classes of OSError that Python 2 does not distinguish.
constexpr std::string_view kOsErrors[] = {
    "BrokenPipeError",        "ChildProcessError",    "ConnectionAbortedError", "ConnectionError",
    "ConnectionRefusedError", "ConnectionResetError", "FileExistsError",        "FileNotFoundError",
    "InterruptedError",       "IsADirectoryError",    "NotADirectoryError",     "PermissionError",
    "ProcessLookupError",     "TimeoutError"};

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::binary_search(names.begin(), names.end(), name);
}

}  // namespace

std::pair<std::string_view, std::string_view> python2_name(std::string_view module,
                                                           std::string_view name) {
  for (const Renamed& entry : kNames) {
    if (entry.module == module && entry.name == name) return {entry.old_module, entry.old_name};
  }
  if (module == "builtins") {
    if (contains(kExceptions, name)) return {"exceptions", name};
    if (contains(kOsErrors, name)) return {"exceptions", "OSError"};
  }
  for (const auto& [now, then] : kModules) {
    if (now == module) return {then, name};
  }
  return {module, name};
}

std::pair<std::string_view, std::string_view> python3_name(std::string_view module,
                                                           std::string_view name) {
  for (const Renamed& entry : kNames) {
    if (entry.old_module == module && entry.old_name == name) return {entry.module, entry.name};
  }
  if (module == "exceptions") return {"builtins", name};
  // If several modules share an old name, the one without an underscore is public.
  std::string_view found = module;
  for (const auto& [now, then] : kModules) {
    if (then == module && (found == module || found.starts_with('_'))) found = now;
  }
  return {found, name};
}

}  // namespace dsckpt::pickle
