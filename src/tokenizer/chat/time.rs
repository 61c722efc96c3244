//! `strftime_now`: templates ask for the current date.

use sterna_host::clock::SystemTime;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Formats the current time (UTC).
pub fn strftime_now(format: &str) -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    strftime(format, since.as_secs())
}

/// Formats the time `seconds` after 1970-01-01 (UTC) in C's notation. Unknown directives are copied.
fn strftime(format: &str, seconds: u64) -> String {
    let (days, of_day) = (seconds / 86400, seconds % 86400);
    let (year, month, day) = civil(days);
    let month_name = MONTHS[month as usize - 1];
    let week_day = DAYS[((days + 4) % 7) as usize];
    let hour = of_day / 3600;
    let of_year = (days - days_before(year)) as i64;
    // Sunday is 0.
    let of_week = ((days + 4) % 7) as i64;
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        // glibc's flag for numbers without padding.
        let is_bare = chars.next_if_eq(&'-').is_some();
        let text = match chars.next() {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('d') => format!("{day:02}"),
            Some('e') => format!("{day:2}"),
            Some('j') => format!("{:03}", of_year + 1),
            Some('A') => week_day.to_owned(),
            Some('a') => week_day[..3].to_owned(),
            Some('w') => of_week.to_string(),
            Some('u') => ((of_week + 6) % 7 + 1).to_string(),
            Some('U') => format!("{:02}", (of_year + 7 - of_week) / 7),
            Some('W') => format!("{:02}", (of_year + 7 - (of_week + 6) % 7) / 7),
            Some('H') => format!("{hour:02}"),
            Some('k') => format!("{hour:2}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('l') => format!("{:2}", (hour + 11) % 12 + 1),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => format!("{:02}", of_day / 60 % 60),
            Some('S') => format!("{:02}", of_day % 60),
            Some('F') => strftime("%Y-%m-%d", seconds),
            Some('T' | 'X') => strftime("%H:%M:%S", seconds),
            Some('R') => strftime("%H:%M", seconds),
            Some('D' | 'x') => strftime("%m/%d/%y", seconds),
            Some('c') => strftime("%a %b %e %H:%M:%S %Y", seconds),
            Some('s') => seconds.to_string(),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('n') => "\n".to_owned(),
            Some('t') => "\t".to_owned(),
            Some('%') => "%".to_owned(),
            other => ['%'].into_iter().chain(is_bare.then_some('-')).chain(other).collect(),
        };
        match is_bare && text.ends_with(|char: char| char.is_ascii_digit()) {
            true => {
                let bare = text.trim_start_matches(['0', ' ']);
                out += if bare.is_empty() { "0" } else { bare };
            }
            false => out += &text,
        }
    }
    out
}

/// Days from 1970-01-01 to January 1 of `year`.
fn days_before(year: u64) -> u64 {
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    365 * (year - 1970) + leaps(year - 1) - leaps(1969)
}

/// Gregorian year, month and day from days since 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    // Count from 0000-03-01, so that the leap day ends a year; an era is 400 years of 146097 days.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        assert_eq!(strftime("%F %T", 0), "1970-01-01 00:00:00");
        assert_eq!(strftime("%d %b %Y", 951_782_400), "29 Feb 2000");
        assert_eq!(
            strftime("%A, %e. %B %Y, %I:%M %p", 1_795_264_530),
            "Saturday, 21. November 2026, 12:35 PM"
        );
        assert_eq!(strftime("100%% %q %-q %", 0), "100% %q %-q %");
        // From glibc's `date -u`.
        assert_eq!(strftime("%-d.%-m. %-I %-H %-M", 951_782_400), "29.2. 12 0 0");
        assert_eq!(
            strftime("%j %U %W %w %u %D %R %c", 951_782_400),
            "060 09 09 2 2 02/29/00 00:00 Tue Feb 29 00:00:00 2000"
        );
        assert_eq!(strftime("%j %U %W %w %u", 1_798_675_200), "365 52 52 4 4");
    }
}
