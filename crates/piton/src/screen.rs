//! The terminal that moving lines are drawn on. One that was closed takes everything and shows nothing:
//! whoever watches may leave, the work goes on.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use indicatif::TermLike;

/// Stderr, drawn on in one go.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    drawn: Mutex<String>,
}

/// What a terminal that does not tell its size is taken for.
const SIZE: (u16, u16) = (80, 24);

/// Takes away what is right of the cursor.
const ERASE: &str = "\u{1b}[K";

impl Screen {
    fn draw(&self, text: &str) -> io::Result<()> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
        Ok(())
    }

    fn move_cursor(&self, n: usize, to: char) -> io::Result<()> {
        match n {
            0 => Ok(()),
            n => self.draw(&format!("\u{1b}[{n}{to}")),
        }
    }

    fn size() -> (u16, u16) {
        match rustix::termios::tcgetwinsize(io::stderr()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
            _ => SIZE,
        }
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        Screen::size().0
    }

    fn height(&self) -> u16 {
        Screen::size().1
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.draw(text)?;
        self.draw("\n")
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.draw(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.draw("\r\u{1b}[2K")
    }

    fn flush(&self) -> io::Result<()> {
        let drawn = std::mem::take(&mut *self.drawn.lock().unwrap_or_else(PoisonError::into_inner));
        // A terminal echoes Ctrl-C as `^C` where the cursor is: at the end of a line that was filled with
        // blanks it would push the cursor below the lines that are to be taken away.
        let text = drawn.trim_end_matches(' ');
        let rest = if text.len() < drawn.len() { ERASE } else { "" };
        let mut out = io::stderr().lock();
        // An error would be a panic where indicatif takes the lines away.
        let _closed = out
            .write_all(text.as_bytes())
            .and_then(|()| out.write_all(rest.as_bytes()))
            .and_then(|()| out.flush());
        Ok(())
    }
}
