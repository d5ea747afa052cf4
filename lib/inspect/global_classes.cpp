#include "inspect/global_classes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "inspect/words.h"
#include "inspect/written_calls.h"
#include "pickle/nodes.h"

namespace dsckpt {
namespace {

// Modules that are dangerous with all their submodules. Python's own come first. They start
// processes or threads, run, compile, import or unpickle code, open files and connections, call
// their arguments, or expose the interpreter.
constexpr std::string_view kDangerousModules =
    "__main__ _aix_support _asyncio _bootsubprocess _ctypes _frozen_importlib "
    "_frozen_importlib_external _functools _imp _interpreters _io _multiprocessing _operator "
    "_osx_support _pickle _posixshmem _posixsubprocess _py _pyio _pyrepl _signal _sitebuiltins "
    "_socket _sqlite3 _ssl _testcapi _testinternalcapi _thread _winapi _xxsubinterpreters "
    "antigravity asyncio asyncore asynchat atexit bdb builtins bz2 cProfile cgi cgitb cmd code "
    "codecs codeop compileall concurrent configparser contextlib crypt ctypes curses dbm "
    "distutils doctest ensurepip faulthandler fcntl filecmp fileinput ftplib functools gc "
    "getpass glob gzip http idlelib imaplib imp importlib inspect io lib2to3 linecache logging "
    "lzma mailbox mailcap marshal mimetypes mmap modulefinder multiprocessing netrc nntplib nt "
    "operator os pdb pickle pickletools pipes pkgutil platform plistlib poplib popen2 posix "
    "posixfile profile pstats pty py_compile pyclbr pydoc pydoc_data readline rlcompleter runpy "
    "select selectors shelve shlex shutil signal site sitecustomize smtpd smtplib socket "
    "socketserver sqlite3 ssl subprocess sys sysconfig syslog tarfile telnetlib tempfile test "
    "this threading timeit tkinter tokenize trace tty turtle turtledemo types unittest urllib "
    "usercustomize venv warnings webbrowser winreg wsgiref xml xmlrpc zipapp zipfile zipimport "
    "accelerate.commands aiohttp boto3 botocore celery cffi click cloudpickle commands cPickle "
    "cython dask deepspeed.launcher deepspeed.ops.op_builder dill docker execnet fabric "
    "fickling fsspec git httplib2 httpx huggingface_hub invoke ipykernel IPython jinja2 joblib "
    "jsonpickle llvmlite matplotlib.cbook modelscan nose numba numexpr numpy.ctypeslib "
    "numpy.distutils numpy.f2py numpy.testing pandas.eval paramiko pexpect pickle5 picklescan "
    "pip pipenv pkg_resources plumbum psutil ptyprocess pudb py pyarrow.serialization Pyro4 "
    "Pyro5 pytest ray requests rpyc ruamel sagemaker setuptools sh six "
    "tensorflow.python.platform torch._C._jit_pass torch._dynamo torch._inductor "
    "torch.cuda.jiterator torch.distributed.elastic torch.distributed.launch "
    "torch.distributed.rpc torch.distributed.run torch.export torch.fx torch.hub torch.jit "
    "torch.multiprocessing torch.onnx torch.ops torch.package torch.testing "
    "torch.utils._config_module torch.utils.bottleneck torch.utils.collect_env "
    "torch.utils.cpp_extension torch.utils.data.datapipes torch.utils.hipify "
    "torch.utils.model_dump torch.utils.model_zoo torch.utils.tensorboard transformers.commands "
    "transformers.dynamic_module_utils twisted urllib3 virtualenv wheel yaml";

// Dangerous names of modules that are not dangerous as a whole.
constexpr Names kDangerousNames[] = {
    {"copyreg", "add_extension constructor dispatch_table pickle remove_extension"},
    {"dataclasses", "_create_fn _set_new_attribute make_dataclass"},
    {"deepspeed", "init_inference initialize"},
    {"itertools", "accumulate dropwhile filterfalse groupby starmap takewhile"},
    {"numpy", "DataSource fromfile fromregex genfromtxt load loadtxt memmap save savetxt savez"},
    {"numpy.lib._npyio_impl", "load loadtxt genfromtxt fromregex DataSource NpzFile"},
    {"numpy.lib.npyio", "load loadtxt genfromtxt fromregex DataSource NpzFile"},
    {"numpy.lib.format", "read_array open_memmap"},
    {"optparse", "Values.read_file Values.read_module"},
    {"pandas", "eval read_pickle read_csv read_hdf read_sql"},
    {"pandas.io.pickle", "read_pickle to_pickle"},
    {"torch", "compile load save classes ops hub jit from_file"},
    {"torch._tensor", "_rebuild_from_type_v2"},
    {"torch._utils", "_import_dotted_name _get_async_or_non_blocking"},
    {"torch.serialization", "load _load _legacy_load save _save _open_file _open_file_like"},
    {"torch.storage", "_load_from_bytes"},
    {"typing", "ForwardRef._evaluate get_type_hints"},
    {"typing_extensions", "get_type_hints"},
    {"uuid", "_get_command_stdout _popen _load_system_functions getnode uuid1"},
};

// Modules that are dangerous inside other packages too.
constexpr std::string_view kDangerousAnywhere =
    "__builtin__ builtins ctypes importlib nt os pickle posix pty runpy shutil socket subprocess "
    "sys";

// Modules that are dangerous as an attribute of another module.
constexpr std::string_view kReachable =
    "__builtin__ __builtins__ _io _posixsubprocess asyncio builtins code codecs ctypes functools "
    "importlib inspect io marshal multiprocessing nt operator os pdb pickle pkgutil platform posix "
    "pty runpy shutil socket subprocess sys tempfile threading timeit types urllib warnings "
    "webbrowser zipimport";

// Functions that run their arguments, whichever module imports them.
constexpr std::string_view kReachableFunctions =
    "Popen __import__ attrgetter check_call check_output eval exec execfile execv execve "
    "find_class getattr getoutput getstatusoutput import_module methodcaller popen resolve_name "
    "run_module run_path spawn spawnl spawnv startfile system";

// Returns whether the module, or a package that it is in, is dangerous.
bool is_in_dangerous_module(std::string_view module) {
  for (size_t dot = module.find('.');; dot = module.find('.', dot + 1)) {
    if (has_word(kDangerousModules, module.substr(0, dot))) return true;
    if (dot == std::string_view::npos) return false;
  }
}

// Calls `visit` with each part between the dots until it returns true.
template <typename Visit>
bool any_part(std::string_view dotted, Visit&& visit) {
  for (;;) {
    const size_t dot = dotted.find('.');
    if (visit(dotted.substr(0, dot))) return true;
    if (dot == std::string_view::npos) return false;
    dotted.remove_prefix(dot + 1);
  }
}

// Returns whether the name leads through attributes to other modules or to the inside of a class.
bool reaches_danger(std::string_view module, std::string_view name) {
  const auto is_dangerous = [](std::string_view part) {
    return has_word(kDangerousAnywhere, part);
  };
  const auto is_reachable = [](std::string_view part) { return has_word(kReachable, part); };
  const auto is_inside = [](std::string_view part) {
    return part.size() > 4 && part.starts_with("__") && part.ends_with("__");
  };
  const size_t dot = name.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? name : name.substr(dot + 1);
  return any_part(module, is_dangerous) || any_part(name, is_reachable) ||
         any_part(name, is_inside) || has_word(kReachableFunctions, last);
}

// Names in builtins with a capital letter are exceptions and constants.
bool is_exception(std::string_view module, std::string_view name) {
  return module == "builtins" && !name.empty() && name[0] >= 'A' && name[0] <= 'Z' &&
         name.find('.') == std::string_view::npos;
}

// Classifies a name of Python 3 that is not known to be harmless.
GlobalClass suspicion_of(std::string_view module, std::string_view name) {
  if (is_exception(module, name)) return GlobalClass::unknown;
  if (is_in_dangerous_module(module) || lists(kDangerousNames, module, name)) {
    return GlobalClass::dangerous;
  }
  // "torch" "jit.load" equals "torch.jit" "load".
  if (const size_t dot = name.rfind('.'); dot != std::string_view::npos) {
    const std::string owner = std::string(module) + "." + std::string(name.substr(0, dot));
    if (is_in_dangerous_module(owner) || lists(kDangerousNames, owner, name.substr(dot + 1))) {
      return GlobalClass::dangerous;
    }
  }
  if (is_in_dangerous_module(std::string(module) + "." + std::string(name))) {
    return GlobalClass::dangerous;
  }
  return reaches_danger(module, name) ? GlobalClass::dangerous : GlobalClass::unknown;
}

GlobalClass suspicion(std::string_view module, std::string_view name) {
  const auto [new_module, new_name] = pickle::python3_name(module, name);
  return std::max(suspicion_of(new_module, new_name), suspicion_of(module, name));
}

bool takes_written_attributes(const pickle::NamedGlobal& global) {
  return global.uses == 0 && !global.attributes.empty() &&
         std::all_of(global.attributes.begin(), global.attributes.end(), is_written_attribute);
}

}  // namespace

const char* to_string(GlobalClass value) {
  switch (value) {
    case GlobalClass::harmless:
      return "harmless";
    case GlobalClass::allowed:
      return "allowed";
    case GlobalClass::unknown:
      return "unknown";
    case GlobalClass::dangerous:
      break;
  }
  return "dangerous";
}

GlobalClass classify_name(std::string_view module, std::string_view name) {
  return written_uses(module, name) != 0 ? GlobalClass::harmless : suspicion(module, name);
}

GlobalClass classify(const pickle::NamedGlobal& global) {
  using Form = pickle::NamedGlobal::Form;
  constexpr unsigned kNeverHarmless = pickle::kChanged | pickle::kResultCalled;
  switch (global.form) {
    case Form::computed:
    case Form::extension:
    case Form::persistent:
      return GlobalClass::dangerous;
    case Form::name:
      break;
  }
  if (takes_written_attributes(global)) return GlobalClass::harmless;
  if ((global.uses & kNeverHarmless) != 0) return GlobalClass::dangerous;
  const unsigned written = written_uses(global.module, global.name);
  if (written == 0) return suspicion(global.module, global.name);
  return (global.uses & ~written) == 0 ? GlobalClass::harmless : GlobalClass::dangerous;
}

GlobalClass classify(const JudgedGlobal& global) {
  return global.problem.empty() ? classify(global.named) : GlobalClass::dangerous;
}

}  // namespace dsckpt
