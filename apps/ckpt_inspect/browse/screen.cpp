#include "ckpt_inspect/browse/screen.h"

#define NCURSES_NOMACROS
#include <curses.h>
#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "base/unicode.h"
#include "ckpt_inspect/browse/known_terminal.h"
#include "dsckpt/error.h"

namespace dsckpt::inspect {
namespace {

namespace fs = std::filesystem;

constexpr std::array kStopSignals{SIGHUP, SIGINT, SIGTERM};
std::atomic<bool> stop{false};
std::array<struct sigaction, kStopSignals.size()> before_signals;

extern "C" void on_stop(int) {
  stop = true;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// A program without shared libraries may run where no descriptions of terminals are installed. This
// one has the sequences of ECMA-48 and the keys of xterm, which the terminals below share:
//
//   xterm|terminals with ECMA-48 and the keys of xterm,
//     am, bce, mir, msgr, xenl, colors#8, cols#80, it#8, lines#24, pairs#64,
//     bold=\E[1m, dim=\E[2m, rev=\E[7m, sgr0=\E[m, op=\E[39;49m,
//     setab=\E[4%p1%dm, setaf=\E[3%p1%dm, clear=\E[H\E[2J, cup=\E[%i%p1%d;%p2%dH, cr=\r,
//     ed=\E[J, el=\E[K, home=\E[H, civis=\E[?25l, cnorm=\E[?25h, smcup=\E[?1049h,
//     rmcup=\E[?1049l, cub1=^H, cuf1=\E[C, cuu1=\E[A, cud1=\n, ind=\n, smkx=\E[?1h\E=,
//     rmkx=\E[?1l\E>, kbs=^?, kcub1=\EOD, kcud1=\EOB, kcuf1=\EOC, kcuu1=\EOA, kend=\EOF,
//     khome=\EOH, knp=\E[6~, kpp=\E[5~,
//
// It is the output of `tic` and then `infocmp -q -0 -Q2`.
constexpr const char* kDescription =
    "b64:GgEzAB0ADwBpAbkAeHRlcm18dGVybWluYWxzIHdpdGggRUNNQS00OCBhbmQgdGhlIGtleXMgb2YgeHRlcm0AAAEA"
    "AAEAAAAAAAAAAAEBAAAAAAAAAAAAAAAAAAFQAAgAGAD__________________________wgAQAD_____AAD_____AgAK"
    "AA4A_____xIAIwAlACkAMAD__zIAOQD__z0A__________________9BAEYA__9PAP_______1QA__________9ZAF0A"
    "_____________________________________2YA_____________2gA____________________________________"
    "_2wA_____3AA__90AHkAfgD_______-CAIYAjgD_____________________________________________________"
    "__________________________________________________-WAP______________________________________"
    "____________________________________________________mAD_____________________________________"
    "____________________________________________________________________________________________"
    "____________________________________________________________________________________________"
    "____________________________________________________________________________________________"
    "______________________________________-cAP__________________________________________________"
    "____________________________________________________________________________________________"
    "____________________pQCvAA0AG1tIG1sySgAbW0sAG1tKABtbJWklcDElZDslcDIlZEgACgAbW0gAG1s_MjVsAAgA"
    "G1s_MjVoABtbQwAbW0EAG1sxbQAbWz8xMDQ5aAAbWzJtABtbN20AG1ttABtbPzEwNDlsAH8AG09CABtPSAAbT0QAG1s2"
    "fgAbWzV-ABtPQwAbT0EAG1s_MWwbPgAbWz8xaBs9AAoAG09GABtbMzk7NDltABtbMyVwMSVkbQAbWzQlcDElZG0A";
constexpr std::array<std::string_view, 14> kLikeXterm{
    "alacritty", "eterm", "foot",   "gnome", "konsole", "linux", "mlterm",
    "putty",     "rxvt",  "screen", "st",    "tmux",    "vt",    "xterm"};

// See terminfo(5), "Fetching Compiled Descriptions".
bool has_description(const std::string& terminal) {
  const std::string own = variable("TERMINFO");
  if (own.starts_with("hex:") || own.starts_with("b64:")) return true;
  std::vector<fs::path> folders{own, fs::path(variable("HOME")) / ".terminfo"};
  const std::string more = variable("TERMINFO_DIRS");
  for (size_t at = 0; at <= more.size();) {
    const size_t end = std::min(more.find(':', at), more.size());
    folders.emplace_back(more.substr(at, end - at));
    at = end + 1;
  }
  for (const char* folder :
       {"/etc/terminfo", "/lib/terminfo", "/usr/share/terminfo", "/usr/lib/terminfo"}) {
    folders.emplace_back(folder);
  }
  const std::string letter = terminal.substr(0, 1);
  const std::string digits = hex_digits(static_cast<unsigned char>(terminal.front()), 2);
  return std::any_of(folders.begin(), folders.end(), [&](const fs::path& folder) {
    std::error_code ignored;
    return !folder.empty() && (fs::exists(folder / letter / terminal, ignored) ||
                               fs::exists(folder / digits / terminal, ignored));
  });
}

UsageError no_screen(const std::string& terminal) {
  const std::string what = terminal.empty()
                               ? "TERM is not set"
                               : "there is no description of the terminal '" + terminal + "'";
  return UsageError(what + ", so nothing can be drawn on it")
      .with_hint("TERM=xterm fits most terminals; `ckpt-inspect tree` needs none");
}

// Sets a locale with UTF-8: the user's, or one that has nothing but UTF-8. Returns false if there
// is none.
bool take_utf8() {
  if (cli::wants_ascii()) {
    std::setlocale(LC_CTYPE, "C");
    return false;
  }
  for (const char* locale : {"", "C.UTF-8", "en_US.UTF-8"}) {
    if (std::setlocale(LC_CTYPE, locale) == nullptr) continue;
    if (std::string_view(::nl_langinfo(CODESET)) == "UTF-8") return true;
  }
  std::setlocale(LC_CTYPE, "C");
  ::setenv("LC_ALL", "C", 1);  // for wants_ascii()
  return false;
}

SCREEN* open_screen() {
  std::string terminal = variable("TERM");
  if (terminal.empty() || terminal == "dumb") throw no_screen(terminal);
  const bool like_xterm =
      std::any_of(kLikeXterm.begin(), kLikeXterm.end(),
                  [&](std::string_view family) { return terminal.starts_with(family); });
  if (like_xterm && !has_description(terminal)) {
    ::setenv("TERMINFO", kDescription, 1);
    terminal = "xterm";
  }
  if (!is_known_terminal(terminal.c_str())) throw no_screen(terminal);
  SCREEN* screen = ::newterm(terminal.c_str(), stdout, stdin);
  if (screen == nullptr) throw no_screen(terminal);
  return screen;
}

attr_t attributes_of(cli::Style style, bool colour) {
  switch (style) {
    case cli::Style::plain:
      break;
    case cli::Style::bold:
      return A_BOLD;
    case cli::Style::dim:
      return A_DIM;
    case cli::Style::good:
    case cli::Style::warning:
    case cli::Style::bad:
      if (!colour) return A_BOLD;
      return static_cast<attr_t>(COLOR_PAIR(static_cast<int>(style)));
  }
  return A_NORMAL;
}

std::string utf8_of(wint_t code) {
  std::array<char, MB_LEN_MAX> bytes{};
  std::mbstate_t state{};
  const size_t size = std::wcrtomb(bytes.data(), static_cast<wchar_t>(code), &state);
  return size == static_cast<size_t>(-1) ? "" : std::string(bytes.data(), size);
}

Key key_of(wint_t code) {
  switch (code) {
    case KEY_RESIZE:
      return Key::resized;
    case KEY_UP:
      return Key::up;
    case KEY_DOWN:
      return Key::down;
    case KEY_LEFT:
      return Key::left;
    case KEY_RIGHT:
      return Key::right;
    case KEY_PPAGE:
      return Key::page_up;
    case KEY_NPAGE:
      return Key::page_down;
    case KEY_HOME:
      return Key::home;
    case KEY_END:
      return Key::end;
    case KEY_ENTER:
      return Key::enter;
    case KEY_BACKSPACE:
      return Key::backspace;
    default:
      return Key::other;
  }
}

}  // namespace

void Screen::require_terminal() {
  if (::isatty(STDIN_FILENO) != 1 || ::isatty(STDOUT_FILENO) != 1) {
    throw UsageError("browse is for a terminal, and standard input or output is not one")
        .with_hint("`ckpt-inspect tree` shows the same in a pipe or a file");
  }
}

Screen::Screen() {
  require_terminal();
  utf8_ = take_utf8();
  colour_ = cli::Terminal::of_stdout().colour;
  handle_ = open_screen();
  ::cbreak();
  ::noecho();
  ::nonl();
  ::keypad(stdscr, true);
  ::set_escdelay(25);
  ::curs_set(0);
  colour_ = colour_ && ::has_colors();
  if (colour_) {
    ::start_color();
    ::use_default_colors();
    ::init_pair(static_cast<short>(cli::Style::good), COLOR_GREEN, -1);
    ::init_pair(static_cast<short>(cli::Style::warning), COLOR_YELLOW, -1);
    ::init_pair(static_cast<short>(cli::Style::bad), COLOR_RED, -1);
  }
  stop = false;
  struct sigaction action {};
  action.sa_handler = on_stop;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    ::sigaction(kStopSignals[i], &action, &before_signals[i]);
  }
}

Screen::~Screen() {
  ::endwin();
  ::delscreen(static_cast<SCREEN*>(handle_));
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    ::sigaction(kStopSignals[i], &before_signals[i], nullptr);
  }
}

size_t Screen::rows() const {
  return static_cast<size_t>(std::max(::getmaxy(stdscr), 1));
}

size_t Screen::columns() const {
  return static_cast<size_t>(std::max(::getmaxx(stdscr), 1));
}

std::string Screen::shown(const std::string& text) const {
  if (utf8_) return text;
  std::string ascii;
  for (std::string_view left = text; !left.empty();) {
    const uint32_t code = next_character(left);
    if (code < 0x80) {
      ascii += static_cast<char>(code);
    } else {
      ascii += "\\u{" + hex_digits(code, 4) + "}";
    }
  }
  return ascii;
}

void Screen::clear() {
  ::werase(stdscr);
}

void Screen::put(size_t row, size_t column, const std::string& text, cli::Style style) {
  if (row >= rows() || column >= columns()) return;
  const std::string visible = shown(text);
  std::wstring wide;
  auto room = static_cast<int>(columns() - column);
  for (std::string_view left = visible; !left.empty();) {
    auto character = static_cast<wchar_t>(next_character(left));
    int width = ::wcwidth(character);
    if (width < 0) {
      character = L'?';
      width = 1;
    }
    if (width > room) break;
    room -= width;
    wide += character;
  }
  const attr_t attributes = attributes_of(style, colour_);
  ::wattr_on(stdscr, attributes, nullptr);
  ::mvwaddnwstr(stdscr, static_cast<int>(row), static_cast<int>(column), wide.data(),
                static_cast<int>(wide.size()));
  ::wattr_off(stdscr, attributes, nullptr);
}

void Screen::highlight(size_t row) {
  ::mvwchgat(stdscr, static_cast<int>(row), 0, -1, A_REVERSE, 0, nullptr);
}

void Screen::show() {
  ::wrefresh(stdscr);
}

Typed Screen::read(int milliseconds) {
  ::wtimeout(stdscr, milliseconds);
  wint_t code = 0;
  const int kind = ::wget_wch(stdscr, &code);
  if (stop) throw InterruptedError();
  if (kind == ERR) {
    pollfd terminal{STDIN_FILENO, POLLIN, 0};
    const bool gone =
        ::poll(&terminal, 1, 0) == 1 && (terminal.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
    if (gone) throw InterruptedError();
    return {};
  }
  if (kind == KEY_CODE_YES) return {key_of(code), ""};
  switch (code) {
    case '\r':
    case '\n':
      return {Key::enter, ""};
    case '\t':
      return {Key::tab, ""};
    case 0x1b:
      return {Key::escape, ""};
    case 0x08:
    case 0x7f:
      return {Key::backspace, ""};
    case 0x02:
      return {Key::page_up, ""};
    case 0x06:
      return {Key::page_down, ""};
    default:
      break;
  }
  std::string character = utf8_of(code);
  if (character.empty() || printable(character) != character) return {Key::other, ""};
  return {Key::character, std::move(character)};
}

}  // namespace dsckpt::inspect
