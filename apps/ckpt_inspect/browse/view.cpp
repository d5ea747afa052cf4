#include "ckpt_inspect/browse/view.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "ckpt_inspect/commands.h"
#include "ckpt_inspect/shown.h"
#include "dsckpt/error.h"

namespace dsckpt::inspect {
namespace {

constexpr size_t kAboveTree = 3;
constexpr size_t kBelowTree = 2;
constexpr size_t kAbovePage = 4;
constexpr size_t kBelowPage = 1;
constexpr size_t kBytes = 10;  // columns
constexpr size_t kShare = 7;
constexpr size_t kBar = 10;
constexpr size_t kKind = 12;
constexpr size_t kGap = 2;
constexpr size_t kLeastName = 20;

std::string padded(const std::string& text, size_t columns) {
  return text + std::string(columns - std::min(columns, cli::columns_of(text)), ' ');
}

std::string right(const std::string& text, size_t columns) {
  return std::string(columns - std::min(columns, cli::columns_of(text)), ' ') + text;
}

double share_of(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string bar_text(double share) {
  const auto full = static_cast<size_t>(std::llround(share * kBar));
  return "[" + std::string(full, '#') + std::string(kBar - full, ' ') + "]";
}

const char* order_name(Browser::Order order) {
  switch (order) {
    case Browser::Order::bytes:
      return "bytes";
    case Browser::Order::name:
      return "name";
    case Browser::Order::elements:
      return "elements";
    case Browser::Order::contents:
      break;
  }
  return "order of the checkpoint";
}

Browser::Order next_order(Browser::Order order) {
  switch (order) {
    case Browser::Order::bytes:
      return Browser::Order::name;
    case Browser::Order::name:
      return Browser::Order::elements;
    case Browser::Order::elements:
      return Browser::Order::contents;
    case Browser::Order::contents:
      break;
  }
  return Browser::Order::bytes;
}

// Returns a key, or the key of a letter.
Key key_in(const Typed& typed) {
  if (typed.key != Key::character) return typed.key;
  if (typed.character == "k") return Key::up;
  if (typed.character == "j") return Key::down;
  if (typed.character == "h") return Key::left;
  if (typed.character == "l") return Key::right;
  if (typed.character == "g") return Key::home;
  if (typed.character == "G") return Key::end;
  return Key::character;
}

Lines help_lines() {
  return [](size_t columns) {
    std::vector<std::string> lines;
    for (const KeyHelp& help : key_helps()) {
      constexpr size_t kKeys = 22;
      const size_t width = columns > kKeys + 1 ? columns - kKeys : 1;
      std::string keys = padded(help.keys, kKeys);
      for (const std::string& line : cli::wrapped(help.what, width)) {
        lines.push_back(keys + line);
        keys = std::string(kKeys, ' ');
      }
    }
    return lines;
  };
}

}  // namespace

const std::vector<KeyHelp>& key_helps() {
  static const std::vector<KeyHelp> kHelps{
      {"up, down, k, j", "one line up or down; also PageUp, PageDown, Home, End, g, G"},
      {"right, l, Enter", "opens a module, or a tensor's position"},
      {"left, h, Backspace", "leaves a module or a page"},
      {"w, p, t", "a tensor's position, its first values (print), its statistics"},
      {"s", "sorts by bytes, name, elements, or in the order of the checkpoint"},
      {"Tab", "counts only bytes of one kind, of the next, or all; on a page: the next view"},
      {"/", "searches a regular expression in the names of all tensors"},
      {"n, N", "the next matching tensor, the previous one"},
      {"Space, m", "marks a tensor, or unmarks it"},
      {"d", "compares the two marked tensors"},
      {"b", "the use of every byte of the files"},
      {"Esc", "stops reading; leaves a page"},
      {"?", "these keys"},
      {"q", "leaves a page; quits"},
  };
  return kHelps;
}

void View::run() {
  for (;;) {
    if (job_ != nullptr && job_->done()) {
      page_->lines = job_->take();
      job_.reset();
    }
    draw();
    const Typed typed = screen_.read(job_ == nullptr ? 1000 : 100);
    if (typed.key != Key::none && !handle(typed)) return;
  }
}

size_t View::room() const {
  const size_t used = page_ ? kAbovePage + kBelowPage : kAboveTree + kBelowTree;
  return screen_.rows() > used ? screen_.rows() - used : 1;
}

void View::draw() {
  screen_.clear();
  draw_title();
  if (page_) {
    draw_page();
  } else {
    draw_tree();
  }
  if (prompt_) {
    const size_t last = screen_.rows() - 1;
    screen_.put(last, 0, padded("/" + *prompt_ + "_", screen_.columns()), cli::Style::bold);
  }
  screen_.show();
}

void View::draw_right(size_t row, const std::string& text, cli::Style style) {
  const size_t width = cli::columns_of(screen_.shown(text));
  if (width + kGap < screen_.columns()) screen_.put(row, screen_.columns() - width, text, style);
}

void View::draw_title() {
  const std::string form = opened_.contents.form();
  const bool damaged = opened_.contents.damage() != nullptr;
  const std::string end = damaged ? "  " + form + ", damaged" : "  " + form;
  const size_t room = screen_.columns() - std::min(screen_.columns() - 1, end.size());
  screen_.put(0, 0, cli::shortened(screen_.shown(printable(opened_.path)), room), cli::Style::bold);
  draw_right(0, end, damaged ? cli::Style::bad : cli::Style::plain);
}

std::string View::name_of(const Browser::Line& line) const {
  return screen_.shown(printable(line.node->name)) + (line.is_module() ? "." : "");
}

std::string View::what_of(const Browser::Line& line) const {
  if (line.tensor() == nullptr) return counted(line.tensors, "tensor");
  return screen_.shown(what_text(*line.node));
}

// The columns that fit. Names may be cut, numbers never.
struct View::Columns {
  size_t name = 0;
  size_t what = 0;  // 0: not shown
  bool share = false;
  bool bar = false;
  std::vector<size_t> kinds;
};

View::Columns View::columns_of_lines(size_t first, size_t last) const {
  Columns columns;
  size_t longest = kLeastName;
  for (size_t i = first; i < last; ++i) {
    longest = std::max(longest, cli::columns_of(name_of(browser_.lines()[i])));
    columns.what = std::max(columns.what, cli::columns_of(what_of(browser_.lines()[i])));
  }
  size_t used = kGap + kBytes + kGap;
  const size_t width = std::max(screen_.columns(), used + 1);
  const auto take = [&](size_t more, size_t name) {
    if (used + more + name > width) return false;
    used += more;
    return true;
  };
  if (!take(kGap + columns.what, kLeastName)) columns.what = 0;
  columns.share = take(kShare + kGap, std::min<size_t>(longest, kLeastName));
  columns.bar = take(kBar + 2 + kGap, longest);
  const size_t all = browser_.kinds().size();
  for (size_t kind = 0; all > 1 && kind < all; ++kind) {
    if (browser_.module_bytes_of(kind) == 0) continue;
    if (!take(kGap + kKind, longest)) break;
    columns.kinds.push_back(kind);
  }
  columns.name = std::min(longest, width - used);
  return columns;
}

void View::draw_tree() {
  const size_t rows = room();
  const std::vector<Browser::Line>& lines = browser_.lines();
  const size_t cursor = browser_.cursor();
  top_ = std::min(top_, lines.size() > rows ? lines.size() - rows : 0);
  top_ = std::clamp(top_, cursor + 1 - std::min(cursor + 1, rows), cursor);
  const size_t last = std::min(lines.size(), top_ + rows);
  const Columns columns = columns_of_lines(top_, last);

  const Browser::Line& module = browser_.module();
  const std::string counts = counted(module.tensors, "tensor") + ", " +
                             counted(module.elements, "element") + ", " + human_bytes(module.bytes);
  const size_t room_of_path =
      screen_.columns() > counts.size() + kGap ? screen_.columns() - counts.size() - kGap : 1;
  const std::string path = browser_.path();
  screen_.put(
      1, 0,
      path.empty() ? "all tensors" : cli::shortened(screen_.shown(printable(path)), room_of_path));
  draw_right(1, counts, cli::Style::plain);

  const auto row_text = [&](const std::string& mark, const std::string& bytes,
                            const std::string& share, const std::string& bar,
                            const std::string& name, const std::string& what) {
    std::string text = padded(mark, kGap) + right(bytes, kBytes) + "  ";
    if (columns.share) text += right(share, kShare) + "  ";
    if (columns.bar) text += padded(bar, kBar + 2) + "  ";
    text += padded(cli::shortened(name, columns.name), columns.name);
    if (columns.what > 0) text += "  " + padded(what, columns.what);
    return text;
  };
  std::string heading = row_text("", "bytes", "share", "", "name", "what");
  for (const size_t kind : columns.kinds) {
    heading += "  " + right(cli::shortened(screen_.shown(printable(browser_.kinds()[kind])), kKind),
                            kKind);
  }
  screen_.put(2, 0, heading, cli::Style::dim);

  for (size_t i = top_; i < last; ++i) {
    const Browser::Line& line = lines[i];
    const NamedTensor* tensor = line.tensor();
    const bool lost = tensor != nullptr && !tensor->lost.empty();
    const double share = share_of(line.bytes, module.bytes);
    const std::string mark = tensor != nullptr && browser_.marked(*tensor) ? "*" : lost ? "!" : "";
    std::string text = row_text(mark, human_bytes(line.bytes), human_percent(share),
                                bar_text(share), name_of(line), what_of(line));
    for (const size_t kind : columns.kinds) {
      const uint64_t bytes = browser_.bytes_of(i, kind);
      text += "  " + right(bytes == 0 ? "" : human_bytes(bytes), kKind);
    }
    const size_t row = kAboveTree + i - top_;
    screen_.put(row, 0, text,
                lost               ? cli::Style::bad
                : line.is_module() ? cli::Style::bold
                                   : cli::Style::plain);
    if (i == cursor) screen_.highlight(row);
  }
  if (screen_.rows() < kAboveTree + kBelowTree + 1) return;
  screen_.put(screen_.rows() - 2, 0, kinds_text(), cli::Style::dim);
  screen_.put(screen_.rows() - 1, 0, status());
}

// Returns "fp32 masters 15.94 KB, exp_avg 15.94 KB", with as many kinds as fit.
std::string View::kinds_text() const {
  if (const auto kind = browser_.counted()) {
    return "only " + printable(browser_.kinds()[*kind]) + " is counted (Tab)";
  }
  std::string text;
  for (size_t kind = 0; kind < browser_.kinds().size(); ++kind) {
    const uint64_t bytes = browser_.module_bytes_of(kind);
    if (bytes == 0) continue;
    const std::string more =
        (text.empty() ? "" : ", ") + printable(browser_.kinds()[kind]) + " " + human_bytes(bytes);
    if (cli::columns_of(screen_.shown(text + more)) > screen_.columns()) break;
    text += more;
  }
  return text;
}

std::string View::status() const {
  if (!message_.empty()) return message_;
  const size_t count = browser_.lines().size();
  std::string text = count == 0 ? "nothing" : std::to_string(browser_.cursor() + 1);
  text += " of " + std::to_string(count) + ", by " + order_name(browser_.order());
  if (!browser_.marks().empty()) text += ", " + std::to_string(browser_.marks().size()) + " marked";
  return text + "   ? keys  q quit";
}

void View::draw_page() {
  screen_.put(1, 0, cli::shortened(screen_.shown(page_->title), screen_.columns()),
              cli::Style::bold);
  screen_.put(2, 0, page_->facts);
  if (page_->tabs.size() > 1) {
    size_t column = 0;
    for (size_t i = 0; i < page_->tabs.size(); ++i) {
      const Page::Tab& tab = page_->tabs[i];
      const std::string text = i == page_->tab ? "[" + tab.name + "]" : " " + tab.name + " ";
      screen_.put(3, column, text, i == page_->tab ? cli::Style::bold : cli::Style::dim);
      column += text.size() + 1;
    }
  }
  const size_t below = screen_.rows() - 1;
  if (!page_->lines) {
    const std::string far = job_->progress_text();
    const std::string verb = job_->cancelled() ? "stopping" : "reading";
    screen_.put(kAbovePage, 0, verb + (far.empty() ? "" : ": " + far));
    screen_.put(below, 0, "Esc stops");
    return;
  }
  const std::vector<std::string> lines = page_->lines(screen_.columns());
  const size_t rows = room();
  page_->top = std::min(page_->top, lines.size() > rows ? lines.size() - rows : 0);
  const size_t last = std::min(lines.size(), page_->top + rows);
  for (size_t i = page_->top; i < last; ++i) {
    screen_.put(kAbovePage + i - page_->top, 0, lines[i]);
  }
  std::string status = "Esc back";
  if (lines.size() > rows) {
    status = "lines " + std::to_string(page_->top + 1) + " to " + std::to_string(last) + " of " +
             std::to_string(lines.size()) + "   " + status;
  }
  screen_.put(below, 0, status);
}

bool View::handle(const Typed& typed) {
  if (typed.key == Key::resized) return true;
  if (prompt_) {
    handle_in_prompt(typed);
    return true;
  }
  if (page_) {
    handle_in_page(typed);
    return true;
  }
  message_.clear();
  return handle_in_tree(typed);
}

bool View::handle_in_tree(const Typed& typed) {
  const auto page = static_cast<ptrdiff_t>(room());
  const auto all = static_cast<ptrdiff_t>(browser_.lines().size());
  switch (key_in(typed)) {
    case Key::up:
      browser_.move(-1);
      return true;
    case Key::down:
      browser_.move(1);
      return true;
    case Key::page_up:
      browser_.move(-page);
      return true;
    case Key::page_down:
      browser_.move(page);
      return true;
    case Key::home:
      browser_.move(-all);
      return true;
    case Key::end:
      browser_.move(all);
      return true;
    case Key::right:
    case Key::enter:
      if (!browser_.enter()) open_tensor('w');
      return true;
    case Key::left:
    case Key::backspace:
      browser_.leave();
      return true;
    case Key::tab:
      browser_.count_next_kind();
      return true;
    case Key::character:
      break;
    default:
      return true;
  }
  switch (typed.character.size() == 1 ? typed.character.front() : '\0') {
    case 'q':
      return false;
    case '?':
      open_text("Keys", [](Progress&) { return help_lines(); });
      break;
    case 'b':
      open_text("Bytes", bytes_page(opened_));
      break;
    case 's':
      browser_.sort(next_order(browser_.order()));
      break;
    case '/':
      prompt_ = "";
      break;
    case 'n':
      search(true);
      break;
    case 'N':
      search(false);
      break;
    case ' ':
    case 'm':
      if (browser_.current() != nullptr && browser_.current()->tensor() == nullptr) {
        message_ = "a tensor can be marked, a module cannot";
      }
      browser_.mark();
      break;
    case 'd':
      open_difference();
      break;
    case 'w':
    case 'p':
    case 't':
      open_tensor(typed.character.front());
      break;
    default:
      break;
  }
  return true;
}

void View::handle_in_page(const Typed& typed) {
  const size_t rows = room();
  const auto up = [&](size_t by) { page_->top -= std::min(page_->top, by); };
  switch (key_in(typed)) {
    case Key::up:
      return up(1);
    case Key::down:
      ++page_->top;
      return;
    case Key::page_up:
      return up(rows);
    case Key::page_down:
      page_->top += rows;
      return;
    case Key::home:
      page_->top = 0;
      return;
    case Key::end:
      page_->top = std::string::npos / 2;
      return;
    case Key::tab:
      if (page_->tabs.size() > 1) start_tab((page_->tab + 1) % page_->tabs.size());
      return;
    case Key::escape:
      if (job_ != nullptr) return job_->cancel();
      return close_page();
    case Key::left:
    case Key::backspace:
      return close_page();
    case Key::character:
      break;
    default:
      return;
  }
  if (typed.character == "q") return close_page();
  for (size_t i = 0; i < page_->tabs.size(); ++i) {
    if (typed.character == std::string(1, page_->tabs[i].key)) return start_tab(i);
  }
}

void View::handle_in_prompt(const Typed& typed) {
  switch (typed.key) {
    case Key::character:
      *prompt_ += typed.character;
      return;
    case Key::backspace:
      while (!prompt_->empty() && (prompt_->back() & 0xc0) == 0x80) prompt_->pop_back();
      if (prompt_->empty()) {
        prompt_.reset();
      } else {
        prompt_->pop_back();
      }
      return;
    case Key::escape:
      prompt_.reset();
      return;
    case Key::enter:
      break;
    default:
      return;
  }
  const std::string text = *std::exchange(prompt_, std::nullopt);
  if (text.empty()) return;
  try {
    pattern_.emplace(std::vector<std::string>{text}, "/");
  } catch (const UsageError& error) {
    message_ = printable(error.what());
    return;
  }
  search(true);
}

void View::search(bool forward) {
  if (!pattern_) {
    message_ = "/ searches";
  } else if (!browser_.find(*pattern_, forward)) {
    message_ = "no tensor's name matches";
  }
}

void View::open_tensor(char tab) {
  const Browser::Line* line = browser_.current();
  const NamedTensor* tensor = line == nullptr ? nullptr : line->tensor();
  if (tensor == nullptr) {
    message_ = "this is a module; Enter goes into it";
    return;
  }
  Page page;
  page.title = printable(tensor->label());
  const std::vector<std::string> cells = tensor_cells(*tensor);
  page.facts =
      cells[1] + ", " + cells[2] + " " + cells[3] + ", " + human_bytes(tensor->value.nbytes());
  if (!tensor->alias_of.empty()) page.facts += ", = " + printable(tensor->alias_of);
  if (!tensor->lost.empty()) page.facts += ", " + lost_text(opened_.contents, *tensor);
  page.tabs = {{'w', "where", extents_page(opened_, *tensor)},
               {'p', "print", values_page(opened_, *tensor)},
               {'t', "stats", statistics_page(opened_, *tensor)}};
  size_t first = 0;
  while (page.tabs[first].key != tab) ++first;
  page_ = std::move(page);
  start_tab(first);
}

void View::open_difference() {
  const std::vector<const NamedTensor*>& marks = browser_.marks();
  if (marks.size() != 2) {
    message_ = "Space marks a tensor; two that are marked can be compared";
    return;
  }
  open_text("Difference", difference_page(opened_, *marks[0], *marks[1]));
}

void View::open_text(std::string title, PageWork work) {
  page_ = Page{};
  page_->title = std::move(title);
  page_->tabs.push_back({'\0', "", std::move(work)});
  start_tab(0);
}

void View::start_tab(size_t tab) {
  job_.reset();
  page_->tab = tab;
  page_->top = 0;
  page_->lines = nullptr;
  job_ = std::make_unique<PageJob>(page_->tabs[tab].work);
  // Short work is not announced.
  if (job_->done_within(50)) {
    page_->lines = job_->take();
    job_.reset();
  }
}

void View::close_page() {
  job_.reset();
  page_.reset();
}

}  // namespace dsckpt::inspect
